"""Transformers 5.23.0: the blocks that a request completes in its last step are never hit. Exit status 1: the bug."""

import sys

from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.continuous_batching.cache import PagedAttentionCache

search, hits = PagedAttentionCache.search_prefix_match, []
PagedAttentionCache.search_prefix_match = lambda *words: hits.append(search(*words)) or hits[-1]
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).eval()
blocks = ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=256, use_cuda_graph=False)
options = {"generation_config": GenerationConfig(do_sample=False, eos_token_id=-1)}
with model.continuous_batching_context_manager(continuous_batching_config=blocks, **options) as manager:
    for _ in range(2):  # one token each, as in scoring
        manager.add_request(list(range(1, 19)), max_new_tokens=1)
        manager.get_result(timeout=60)
print(f"tokens of the repeated prompt that are hit: {hits[1]}; expected: 16, of 18")
sys.exit(hits[1] != 16)
