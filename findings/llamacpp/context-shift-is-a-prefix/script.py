"""llama.cpp (xllamacpp 2026.10.11549): what a context shift moved is reused as a prefix. Exit status 1: the bug."""

import sys, tempfile

import gguf, numpy, xllamacpp

folder, numbers = tempfile.mkdtemp(), numpy.random.default_rng(0)
model = gguf.GGUFWriter(f"{folder}/model", "olmo")
model.add_embedding_length(64), model.add_feed_forward_length(64), model.add_head_count(2), model.add_block_count(2)
model.add_layer_norm_eps(1e-5), model.add_context_length(256), model.add_tokenizer_model("gpt2")
model.add_token_list([f"{token}," for token in range(64)]), model.add_token_merges(["0 0"])
parts = [gguf.TENSOR_NAMES[part] + ".weight" for part in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.OLMO]]
for name in dict.fromkeys(part.format(bid=layer) for layer in (0, 1) for part in parts):
    model.add_tensor(name, numbers.standard_normal((64, 64), "f4") / 4)
model.write_header_to_file(), model.write_kv_data_to_file(), model.write_tensors_to_file()
options, prompt = xllamacpp.CommonParams(), numbers.integers(0, 64, 132).tolist()
options.model.path, options.n_parallel, options.n_ctx, options.ctx_shift = f"{folder}/model", 1, 256, True
server, ask = xllamacpp.Server(options), {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
answer = server.handle_completions({**ask, "prompt": prompt, "max_tokens": 144})["choices"][0]["text"]
ask["prompt"] = [*prompt[127:], *map(int, answer.rstrip(",").split(",")), 1, 2]  # the shift discarded 128
hit, cold = (server.handle_completions({**ask, "cache_prompt": cached}) for cached in (True, False))
print(f"answer from what a shift left: {hit['choices'][0]['text']}; expected: {cold['choices'][0]['text']}")
sys.exit(hit["choices"] != cold["choices"])
