"""SGLang 0.5.23: a request that fits into the pool is never scheduled. Exit status 1: the bug."""

import asyncio, sys, tempfile

import sglang
from transformers import LlamaConfig

if __name__ == "__main__":  # the engine's processes import this file
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes)
    config.save_pretrained(folder := tempfile.mkdtemp())
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_total_tokens": 1024, "page_size": 16}
    engine = sglang.Engine(model_path=folder, device="cpu", attention_backend="torch_native", **options)
    ask = {"max_new_tokens": 4, "ignore_eos": True}
    request = engine.async_generate(input_ids=[7] * 1014, sampling_params=ask)  # 1018 of 1024 tokens
    try:
        said = engine.loop.run_until_complete(asyncio.wait_for(request, 30))["output_ids"]
    except TimeoutError:
        said = []
    print(f"tokens in 30 seconds: {len(said)}; expected: 4")
    sys.exit(len(said) != 4)
