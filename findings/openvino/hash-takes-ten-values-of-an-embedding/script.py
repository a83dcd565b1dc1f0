"""OpenVINO GenAI 2026.4.1: embeddings that differ are one key. Exit status 1: the bug."""

import pathlib, sys, tempfile

import numpy, openvino, openvino.opset13 as op, openvino_genai as genai

folder, draw, ids = tempfile.mkdtemp(), numpy.random.default_rng(0).standard_normal, op.parameter([-1, -1], numpy.int64)
save = lambda name, *parts: openvino.save_model(openvino.Model(*parts), f"{folder}/openvino_{name}_model.xml", False)
linear = lambda rows: op.unsqueeze(op.matmul(rows, draw((64, 64), "f4") / 4, False, True), 1)
rows, empty = op.parameter([-1, -1, 64], numpy.float32, name="inputs_embeds"), numpy.zeros((1, 1, 0, 64), "f4")
kept = [op.concat([op.gather(op.read_value(empty, name), [0], 0), linear(rows)], 2) for name in "kv"]
attention = op.scaled_dot_product_attention(linear(rows), *kept, numpy.float32(0))
(logits := op.result(op.squeeze(attention, 1))).output(0).set_names({"logits"})
save("language", [logits], [op.assign(new, name) for new, name in zip(kept, "kv")], [rows])
for name in ("text_embeddings", "vision_embeddings"):
    save(name, [op.result(op.gather(draw((64, 64), "f4"), ids, 0))], [ids])
pathlib.Path(folder, "config.json").write_text('{"model_type": "llava", "vision_config": {"patch_size": 1}}')
scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig(max_new_tokens=4, ignore_eos=True, eos_token_id=0)
images, found = draw((2, 1, 70, 64), "f4"), []
images[1, :, :, ::50] = images[0, :, :, ::50]  # two of 64 values are equal
for scheduler.enable_prefix_caching in (False, True):
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU")
    found += [pipeline.generate([openvino.Tensor(one.copy())], [config])[0].m_generation_ids[0] for one in images]
print(f"answer behind one with the same hash: {found[3]}; expected: {found[1]}")
sys.exit(found[1] != found[3])
