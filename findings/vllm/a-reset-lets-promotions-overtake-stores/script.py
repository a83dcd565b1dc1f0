"""vLLM 0.32.0: after a reset, an older store overwrites what was read from a file. Exit status 1: the bug."""

import os, sys, tempfile, time
from unittest.mock import MagicMock

import numpy as np
from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.v1.kv_offload.base import GPULoadStoreSpec, TransferResult
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
done, read = [], []  # a worker whose KV is the number of its store, as copies need a GPU; all else is vLLM's
def transfer(job, source, target):
    kv = np.asarray(tier.manager.primary_tier.get_kv_memoryview())
    if isinstance(target, GPULoadStoreSpec):
        read.extend(kv[source.block_ids, 0].tolist())
    else:
        kv[target.block_ids] = time.sleep(0.1) or job  # later than a file is read
    return not done.append(TransferResult(job, True, 0))
worker = MagicMock(submit_store=transfer, submit_load=transfer, get_finished=lambda: [done.pop() for _ in list(done)])
TieringOffloadingSpec.get_worker = lambda self, caches: worker
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
files = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs", "root_dir": folder}]}
extra = {"kv_connector_extra_config": files | {"cpu_bytes_to_use": 10**7}}
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"} | extra
engine = LLM(folder, kv_transfer_config=connector, max_model_len=256, **options).llm_engine
tier = engine.engine_core.engine_core.scheduler.connector.connector_scheduler
def steps(count): return [time.sleep(0.01) or engine.step() for _ in range(count)]
for name, token, count in ("job 0 stores", 7, 20), ("job 1 stores at a reset", 9, 1), ("reads files", 7, 1):
    engine.add_request(name, {"prompt_token_ids": [token] * 70}, SamplingParams(detokenize=False)), steps(count)
    token == 7 and engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
sys.exit(1 in (steps(20) and read) and f"a prompt of job 0 is loaded with the KV of jobs {read}; expected: job 0's")
