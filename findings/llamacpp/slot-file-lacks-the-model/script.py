"""llama.cpp (xllamacpp 2026.10.11549): a slot's file fits a model with other weights. Exit status 1: the bug."""

import sys, tempfile, urllib.request

import gguf, numpy, xllamacpp

options, folder, numbers = xllamacpp.CommonParams(), tempfile.mkdtemp(), numpy.random.default_rng(0)
options.model.path, options.slot_save_path, options.n_parallel = f"{folder}/model", f"{folder}/", 1
for action in ("save", "restore"):  # each with other weights
    model = gguf.GGUFWriter(f"{folder}/model", "olmo")
    model.add_embedding_length(64), model.add_feed_forward_length(64), model.add_head_count(2), model.add_block_count(1)
    model.add_layer_norm_eps(1e-5), model.add_context_length(64), model.add_tokenizer_model("gpt2")
    model.add_token_list([f"{token}," for token in range(64)]), model.add_token_merges(["0 0"])
    for part in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.OLMO]:
        weights = numbers.standard_normal((64, 64), "f4") / 4
        model.add_tensor(gguf.TENSOR_NAMES[part].format(bid=0) + ".weight", weights)
    model.write_header_to_file(), model.write_kv_data_to_file(), model.write_tensors_to_file()
    server, ask = xllamacpp.Server(options), {"prompt": list(range(20)), "max_tokens": 4, "temperature": 0}
    cold = server.handle_completions(ask)["choices"][0]["text"]
    urllib.request.urlopen(f"{server.listening_address}/slots/0?action={action}", b'{"filename": "kept"}')
warm = server.handle_completions(ask)["choices"][0]["text"]
print(f"answer behind a restore of a slot that a model with other weights saved: {warm}; expected: {cold}")
sys.exit(warm != cold)
