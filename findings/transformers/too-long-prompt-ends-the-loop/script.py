"""Transformers 5.23.0: a prompt that does not fit into the pool ends generation for all. Exit status 1: the bug."""

import sys

from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).eval()
blocks = ContinuousBatchingConfig(page_size=16, num_blocks=8, max_batch_tokens=64, use_cuda_graph=False)
options = {"generation_config": GenerationConfig(do_sample=False, eos_token_id=-1)}
with model.continuous_batching_context_manager(continuous_batching_config=blocks, **options) as manager:
    manager.add_request([5] * 10, max_new_tokens=1)
    manager.get_result(timeout=60)
    try:
        manager.add_request([7] * 200, max_new_tokens=4)  # the pool has 128 tokens
        manager.get_result(timeout=60)
    except ValueError as refusal:
        print(f"refused: {refusal}")
    manager.add_request([5] * 10, max_new_tokens=1)
    other = manager.get_result(timeout=10)
print(f"another client's request is answered afterwards: {other is not None}; expected: True")
sys.exit(other is None)
