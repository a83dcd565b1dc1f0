"""OpenVINO GenAI 2026.4.1: the base model hits blocks of an adapter's request. Exit status 1: the bug."""

import sys, tempfile

import numpy, openvino, openvino.opset13 as op, openvino_genai as genai, safetensors.numpy

folder, draw = tempfile.mkdtemp(), numpy.random.default_rng(0).standard_normal
linear = lambda name, hidden: op.matmul(hidden, draw((64, 64), "f4") / 4, False, True, name=name)
ids, lora = op.parameter([-1, -1], numpy.int64, name="input_ids"), f"{folder}/lora.safetensors"
hidden, empty = op.unsqueeze(op.gather(draw((64, 64), "f4"), ids, 0), 1), numpy.zeros((1, 1, 0, 64), "f4")
kept = [op.concat([op.gather(op.read_value(empty, name), [0], 0), linear(name, hidden)], 2) for name in "kv"]
attention = op.scaled_dot_product_attention(linear("q", hidden), *kept, numpy.float32(0))
(logits := op.result(linear("head", op.squeeze(op.add(hidden, attention), 1)))).output(0).set_names({"logits"})
sinks = [op.assign(new, name) for new, name in zip(kept, "kv")]
openvino.save_model(openvino.Model([logits], sinks, [ids], "model"), f"{folder}/openvino_model.xml", False)
safetensors.numpy.save_file({f"base_model.model.v.lora_{one}.weight": draw((64, 64), "f4") for one in "AB"}, lora)
scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig(max_new_tokens=4, ignore_eos=True, eos_token_id=0)
prompt, adapted, found = openvino.Tensor(numpy.arange(60)[None]), genai.AdapterConfig(genai.Adapter(lora)), []
for scheduler.enable_prefix_caching in (False, True):
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", {"adapters": adapted}, {}, {})
    for config.adapters in (adapted, genai.AdapterConfig()):
        answers = pipeline.generate([prompt], [config])
    found.append(answers[0].m_generation_ids[0])
print(f"the base model's answer behind an adapter's: {found[1]}; expected: {found[0]}")
sys.exit(found[0] != found[1])
