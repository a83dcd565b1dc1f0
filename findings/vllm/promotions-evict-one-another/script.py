"""vLLM 0.32.0: a prompt with more files than host memory has room for waits for ever. Exit status 1: the bug."""

import os, sys, tempfile, time, unittest.mock
from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.v1.kv_offload.base import TransferResult as End
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec as Spec

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
done, copy = [], lambda job, *_: not done.append(End(job, True))
ended = lambda: [done.pop() for _ in done[:]]
worker = unittest.mock.MagicMock(submit_store=copy, submit_load=copy, get_finished=ended)
Spec.get_worker = lambda self, caches: worker  # vLLM's own needs a GPU; everything else is vLLM's
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
six = {"cpu_bytes_to_use": 6 * 32 * 64 * 2 * 2 * 2}  # blocks of 32 tokens, in bfloat16
files = {"secondary_tiers": [{"type": "fs", "root_dir": folder}], "spec_name": Spec.__name__, **six}
config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": files}
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "max_num_batched_tokens": 64}
engine = LLM(folder, max_model_len=512, kv_transfer_config=config, block_size=32, max_num_seqs=2, **options).llm_engine
for name, steps in ("first", 40), ("again", 500):
    engine.add_request(name, {"prompt_token_ids": [7] * 330}, SamplingParams(max_tokens=1, detokenize=False))
    answered = sum(time.sleep(0.005) or len(engine.step()) for _ in range(steps)) and engine.reset_prefix_cache()
sys.exit(not answered and "500 steps, and no answer to a prompt of ten files with host memory for six; expected: one")
