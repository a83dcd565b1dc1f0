"""Transformers 5.23.0: after a change of adapter, requests hit the old one's blocks. Exit status 1: the bug."""

import sys

from peft import LoraConfig
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.continuous_batching.cache import PagedAttentionCache

search, hits = PagedAttentionCache.search_prefix_match, []
PagedAttentionCache.search_prefix_match = lambda *words: hits.append(search(*words)) or hits[-1]
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
config, lora = LlamaConfig(vocab_size=128, **sizes), LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
model = LlamaForCausalLM(config).eval()
blocks = ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=256, use_cuda_graph=False)
options = {"generation_config": GenerationConfig(do_sample=False, eos_token_id=-1)}
for name in "AB":
    model.add_adapter(lora, adapter_name=name)
with model.continuous_batching_context_manager(continuous_batching_config=blocks, **options) as manager:
    for name in "AB":
        with manager.pause():
            model.set_adapter(name)
        manager.add_request(list(range(1, 20)), max_new_tokens=4)
        manager.get_result(timeout=60)
print(f"tokens hit by the first request to adapter B: {hits[1]}; expected: 0")
sys.exit(hits[1] > 0)
