"""vLLM 0.32.0: a reset with a running request ends an engine with OffloadingConnector. Exit status 1: the bug."""

import os, sys, tempfile
from types import SimpleNamespace as Worker

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
jobs = []  # in the place of copies by a GPU: the scheduler is at fault
copies = {"submit_store": lambda job, *_: jobs.append(job) or True, "wait": lambda _: None, "shutdown": lambda: None}
copies |= {"submit_load": copies["submit_store"]}
copies["get_finished"] = lambda: [TransferResult(jobs.pop(), True, 0) for _ in list(jobs)]
CPUOffloadingSpec.get_worker = lambda self, caches: Worker(**copies)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
tier = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use": 2**20}}
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
engine = LLM(folder, max_model_len=256, kv_transfer_config=tier, **options).llm_engine
engine.add_request("0", {"prompt_token_ids": [7] * 70}, SamplingParams(max_tokens=8, detokenize=False))
[engine.step() for _ in range(3)]
print(engine.reset_prefix_cache(reset_running_requests=True))
[engine.step() for _ in range(30)]
