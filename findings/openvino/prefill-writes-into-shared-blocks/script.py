"""OpenVINO GenAI 2026.4.1: two prompts write into a block. Exit status 1: the bug."""

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
scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig(max_new_tokens=3, ignore_eos=True, eos_token_id=0)
exact, prompt, found = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"}, [*range(40)], []
ask = lambda *asked: pipeline.generate([openvino.Tensor(numpy.array([one])) for one in asked], [config] * len(asked))
for scheduler.enable_prefix_caching in (False, True):
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", exact)
    first = [*prompt, *ask(prompt)[0].m_generation_ids[0]]
    found.append([turn.m_generation_ids[0] for turn in ask([*first, *range(9)], [*first, *range(50, 59)])])
print(f"next turns at once: {found[1]}; expected: {found[0]}")
sys.exit(found[0] != found[1])
