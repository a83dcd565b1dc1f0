"""OpenVINO GenAI 2026.4.1: a prompt above the pool's size drops another request. Exit status 1: the bug."""

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
scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig(max_new_tokens=4, ignore_eos=True, eos_token_id=0)
scheduler.num_kv_blocks = 8
pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU")
prompts = [openvino.Tensor(numpy.ones((1, length), int)) for length in (800, 64)]  # the pool has 256 tokens
requests = [pipeline.add_request(number, prompt, config) for number, prompt in enumerate(prompts)]
while pipeline.has_non_finished_requests():
    pipeline.step()
print(f"status of the request that fits: {(status := requests[1].get_status()).name}; expected: FINISHED")
sys.exit(status != genai.GenerationStatus.FINISHED)
