"""OpenVINO GenAI 2026.4.1: eviction takes a prefix's first block before its last. Exit status 1: the bug."""

import sys, tempfile

import numpy, openvino, openvino.opset13 as op, openvino_genai as genai

folder, draw = tempfile.mkdtemp(), numpy.random.default_rng(0).standard_normal
linear = lambda hidden: op.matmul(hidden, draw((64, 64), "f4") / 4, False, True)
ids, empty = op.parameter([-1, -1], numpy.int64, name="input_ids"), numpy.zeros((1, 1, 0, 64), "f4")
hidden = op.unsqueeze(op.gather(draw((64, 64), "f4"), ids, 0), 1)
kept = [op.concat([op.gather(op.read_value(empty, name), [0], 0), linear(hidden)], 2) for name in "kv"]
attention = op.scaled_dot_product_attention(linear(hidden), *kept, numpy.float32(0))
(logits := op.result(linear(op.squeeze(attention, 1)))).output(0).set_names({"logits"})
sinks = [op.assign(new, name) for new, name in zip(kept, "kv")]
openvino.save_model(openvino.Model([logits], sinks, [ids], "model"), f"{folder}/openvino_model.xml", False)
scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig(max_new_tokens=1, ignore_eos=True, eos_token_id=0)
scheduler.enable_prefix_caching, scheduler.num_kv_blocks, scheduler.max_num_batched_tokens = True, 24, 1
pipeline, first = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU"), numpy.arange(384)[None] % 64
for number, prompt in enumerate((first, numpy.ones((1, 416), int), first)):  # 12, 13, 12 blocks
    request, steps = pipeline.add_request(number, openvino.Tensor(prompt), config), 0
    while pipeline.has_non_finished_requests():  # a token each
        steps = pipeline.step() or steps + 1
print(f"computed again: {steps} tokens; expected: one block, 32")
sys.exit(steps > 32)
