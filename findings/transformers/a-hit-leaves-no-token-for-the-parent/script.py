"""Transformers 5.23.0: two answers to a prompt that is cached but for a token end the loop. Exit status 1: the bug."""

import sys

from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).eval()
blocks = ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=256, use_cuda_graph=False)
options = {"generation_config": GenerationConfig(do_sample=False, eos_token_id=-1)}
with model.continuous_batching_context_manager(continuous_batching_config=blocks, **options) as manager:
    for answers in (1, 2):
        manager.num_return_sequences = answers
        manager.add_request(list(range(1, 34)), max_new_tokens=4)
        results = [manager.get_result(timeout=60) for _ in range(answers)]
    problem = manager.background_thread_status.fatal_error or [one and one.error for one in results]
answered = all(one is not None and one.error is None for one in results)
print(f"two answers to a repeated prompt of 33 tokens: {answered} ({problem}); expected: True")
sys.exit(not answered)
