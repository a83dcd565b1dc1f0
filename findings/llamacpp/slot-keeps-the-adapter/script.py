"""llama.cpp (xllamacpp 2026.10.11549): without `lora`, a request reuses an adapter's KV. Exit status 1: the bug."""

import functools, sys, tempfile

import gguf, numpy, xllamacpp

folder, draw = tempfile.mkdtemp(), functools.partial(numpy.random.default_rng(0).standard_normal, (64, 64), "f4")
model, lora = (gguf.GGUFWriter(f"{folder}/{name}", "olmo") for name in ("model", "lora"))
model.add_embedding_length(64), model.add_feed_forward_length(64), model.add_head_count(2), model.add_block_count(1)
model.add_layer_norm_eps(1e-5), model.add_context_length(64), model.add_tokenizer_model("gpt2")
model.add_token_list([f"{token}," for token in range(64)]), model.add_token_merges(["0 0"])
for part in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.OLMO]:
    model.add_tensor(gguf.TENSOR_NAMES[part].format(bid=0) + ".weight", draw())
lora.add_type("adapter"), lora.add_string("adapter.type", "lora")
lora.add_tensor("blk.0.attn_v.weight.lora_a", draw()), lora.add_tensor("blk.0.attn_v.weight.lora_b", draw())
for file in (model, lora):
    file.write_header_to_file(), file.write_kv_data_to_file(), file.write_tensors_to_file()
options, adapter = xllamacpp.CommonParams(), xllamacpp.CommonAdapterLoraInfo()
adapter.path, adapter.scale = f"{folder}/lora", 0.0
options.model.path, options.lora_adapters = f"{folder}/model", [adapter]
server, ask = xllamacpp.Server(options), {"prompt": list(range(20)), "max_tokens": 4}
server.handle_completions({**ask, "lora": [{"id": 0, "scale": 1.0}]})
hits = server.handle_completions(ask)["timings"]["cache_n"]
print(f"tokens hit by the base model behind an adapter's request: {hits}; expected: 0")
sys.exit(hits > 0)
