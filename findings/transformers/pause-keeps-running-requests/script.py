"""Transformers 5.23.0: under new weights, a request goes on with KV of the old ones. Exit status 1: as described."""

import sys

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, initializer_range=0.2, **sizes)).eval()
blocks = ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=256, use_cuda_graph=False)
options = {"generation_config": GenerationConfig(do_sample=False, eos_token_id=-1)}
with model.continuous_batching_context_manager(continuous_batching_config=blocks, **options) as manager:
    manager.add_request(list(range(1, 40)), max_new_tokens=300, streaming=True)
    seen = manager.get_result(timeout=60)
    with manager.pause():
        [weights.data.normal_(std=0.2) for weights in model.parameters()]
    while not seen.is_finished():
        seen = manager.get_result(timeout=60)
with torch.no_grad():  # what the new weights make of the same tokens, without any cache
    logits = model(torch.tensor([list(range(1, 40)) + seen.generated_tokens])).logits[0]
same = sum(one == other for one, other in zip(logits[-101:-1].argmax(-1).tolist(), seen.generated_tokens[-100:]))
print(f"of the last 100 tokens, {same} are those of the new weights; expected: 100")
sys.exit(same < 100)
