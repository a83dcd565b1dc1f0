"""OpenVINO GenAI 2026.4.1: scores of cached prompt tokens are missing. Exit status 1: the bug."""

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
scheduler.enable_prefix_caching, config.echo, config.logprobs = True, True, 1
pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU")
for number in range(2):
    request = pipeline.add_request(number, openvino.Tensor(numpy.arange(64)[None]), config)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    output = request.read_all()[0]
print(f"scores: {len(output.generated_log_probs)}; expected: {len(output.generated_ids)}, as many as tokens")
sys.exit(len(output.generated_log_probs) != len(output.generated_ids))
