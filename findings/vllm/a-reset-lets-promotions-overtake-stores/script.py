"""vLLM 0.32.0: after a reset, an older store overwrites what was read from a file. Exit status 1: the bug."""

import os, sys, tempfile, time, unittest.mock, numpy as np
from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.v1.kv_offload.base import TransferResult as End
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec as Spec

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
read, done, kv = [], [], lambda: np.asarray(host.get_kv_memoryview())  # of a worker whose KV is the number of its store
put = lambda job, _, to: kv().__setitem__(to.block_ids, time.sleep(0.1) or job) or not done.append(End(job, True))
get = lambda job, by, _: read.extend(kv()[by.block_ids, 0].tolist()) or not done.append(End(job, True))
worker = unittest.mock.MagicMock(submit_store=put, submit_load=get, get_finished=lambda: [done.pop() for _ in done[:]])
Spec.get_worker = lambda self, caches: worker  # vLLM's own needs a GPU; everything else is vLLM's
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
files = {"secondary_tiers": [{"type": "fs", "root_dir": folder}], "spec_name": Spec.__name__, "cpu_bytes_to_use": 10**7}
config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": files}
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
engine = LLM(folder, max_model_len=256, kv_transfer_config=config, **options).llm_engine
host = engine.engine_core.engine_core.scheduler.connector.connector_scheduler.manager.primary_tier
for name, token, steps in ("job 0", 7, 20), ("job 1, at a reset", 9, 1), ("loads job 0", 7, 1), ("end", 5, 20):
    engine.add_request(name, {"prompt_token_ids": [token] * 70}, SamplingParams(detokenize=False))
    [time.sleep(0.01) or engine.step() for _ in range(steps)] and token == 7 and engine.reset_prefix_cache(True, True)
sys.exit(1 in read and f"a prompt of job 0 is loaded with the KV of jobs {read}; expected: job 0's")
