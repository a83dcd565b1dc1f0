"""llama.cpp (xllamacpp 2026.10.11549): a full unified buffer fails all requests. Exit status 1: the bug."""

import sys, tempfile
from concurrent.futures import ThreadPoolExecutor

import gguf, numpy, xllamacpp

folder, numbers = tempfile.mkdtemp(), numpy.random.default_rng(0)
model = gguf.GGUFWriter(f"{folder}/model", "olmo")
model.add_embedding_length(64), model.add_feed_forward_length(64), model.add_head_count(2), model.add_block_count(1)
model.add_layer_norm_eps(1e-5), model.add_context_length(256), model.add_tokenizer_model("gpt2")
model.add_token_list([f"{token}," for token in range(64)]), model.add_token_merges(["0 0"])
for part in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.OLMO]:
    model.add_tensor(gguf.TENSOR_NAMES[part].format(bid=0) + ".weight", numbers.standard_normal((64, 64), "f4"))
model.write_header_to_file(), model.write_kv_data_to_file(), model.write_tensors_to_file()
options = xllamacpp.CommonParams()
options.model.path, options.n_parallel, options.n_ctx, options.kv_unified = f"{folder}/model", 4, 256, True
server = xllamacpp.Server(options)
with ThreadPoolExecutor() as clients:  # each request fits into the buffer of 256 tokens
    asks = [{"prompt": [token] * 100, "max_tokens": 50, "ignore_eos": True} for token in (1, 2, 3)]
    answers = list(clients.map(server.handle_completions, asks))
print(f"requests that fit alone and are answered together: {sum('choices' in one for one in answers)}; expected: 3")
sys.exit(not all("choices" in one for one in answers))
