"""mlx-lm 0.32.2: with a draft model, a sequence is kept without the KV of its last token. Exit status 1: the bug."""

import mlx.core as mx
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2}
model = Model(ModelArgs(model_type="llama", rms_norm_eps=1e-5, vocab_size=64, **sizes))
kept = LRUPromptCache()


def answer(prompt):  # as ResponseGenerator._serve_single serves a request
    cache, rest = kept.fetch_nearest_cache("model", prompt)
    cache = cache or make_prompt_cache(model) + make_prompt_cache(model)
    steps = speculative_generate_step(mx.array(rest), model, model, max_tokens=3, prompt_cache=cache)
    key = prompt + [token for token, *_ in steps]
    kept.insert_cache("model", key, cache)
    return key, cache


key, cache = answer([1, 2, 3, 4])
print(f"tokens in the key of a kept sequence: {len(key)}; in its KV cache: {cache[0].offset}; expected: as many")
raise SystemExit(len(key) != cache[0].offset)
