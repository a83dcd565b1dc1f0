"""Transformers 5.23.0: equal prompts that share their blocks run one after the other. Exit status 1: as described."""

import sys

from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor

update, batches = ContinuousBatchProcessor.update_batch, []
ContinuousBatchProcessor.update_batch = lambda self: batches.append(1) or update(self)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).eval()
blocks = ContinuousBatchingConfig(page_size=16, num_blocks=24, max_batch_tokens=256, use_cuda_graph=False)
options = {"generation_config": GenerationConfig(do_sample=False, eos_token_id=-1)}
with model.continuous_batching_context_manager(continuous_batching_config=blocks, **options) as manager:
    manager.add_request([7] * 193, max_new_tokens=2)
    manager.get_result(timeout=60)
    batches.clear()
    manager.add_requests([[7] * 193] * 8, max_new_tokens=8)
    answers = [manager.get_result(timeout=60) for _ in range(8)]
print(f"batches for 8 answers of 8 tokens, with 192 of 193 tokens shared: {len(batches)}; expected: about 9")
sys.exit(len(batches) > 20)
