"""OpenVINO GenAI 2026.4.1: a ChatHistory makes later prompts one chat. Exit status 1: the bug."""

import pathlib, sys, tempfile, numpy, openvino, openvino.opset13 as op, openvino_genai as genai, openvino_tokenizers

folder, draw, ids = tempfile.mkdtemp(), numpy.random.default_rng(0).standard_normal, op.parameter([-1, -1], numpy.int64)
save = lambda name, model: openvino.save_model(model, f"{folder}/openvino_{name}.xml", False)
linear = lambda rows: op.unsqueeze(op.matmul(rows, draw((64, 64), "f4") / 4, False, True), 1)
rows, empty = op.parameter([-1, -1, 64], numpy.float32, name="inputs_embeds"), numpy.zeros((1, 1, 0, 64), "f4")
kept = [op.concat([op.gather(op.read_value(empty, name), [0], 0), linear(rows)], 2) for name in "kv"]
attention = op.scaled_dot_product_attention(linear(rows), *kept, numpy.float32(0))
(logits := op.result(op.squeeze(attention, 1))).output(0).set_names({"logits"})
save("language_model", openvino.Model([logits], [op.assign(new, name) for new, name in zip(kept, "kv")], [rows]))
for name in ("text", "vision"):
    save(f"{name}_embeddings_model", openvino.Model([op.result(op.gather(draw((256, 64), "f4"), ids, 0))], [ids]))
pathlib.Path(folder, "config.json").write_text('{"model_type": "llava", "vision_config": {"patch_size": 1}}')
tokens = [f"{number} {bytes([(number + 64) % 256])!r} 1" for number in range(256)]
encoder, decoder = openvino_tokenizers.build_rwkv_tokenizer(tokens)
encoder.output(0).add_names({"attention_mask"}), encoder.set_rt_info("{{ messages }}", "chat_template")
save("tokenizer", encoder), save("detokenizer", decoder)
pipeline = genai.ContinuousBatchingPipeline(folder, genai.SchedulerConfig(), "CPU")
config = genai.GenerationConfig(max_new_tokens=4, ignore_eos=True, eos_token_id=0)
ask = lambda prompt: pipeline.generate([prompt], images=[[]], generation_config=[config])[0].texts[0]
found = [ask(one) for one in ("What?", genai.ChatHistory([{"role": "user", "content": "Other."}]), "What?", "What?")]
print(f"the last of three equal prompts is answered {found[3]!r}; expected: {found[0]!r}")
sys.exit(found[3] != found[0])
