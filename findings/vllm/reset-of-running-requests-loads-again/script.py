"""vLLM 0.32.0: a reset with a running request ends an engine with OffloadingConnector. Exit status 1: the bug."""

import os, sys, tempfile
from unittest.mock import MagicMock

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
done = []  # a worker that copies nothing, as its copies need a GPU; the scheduler's half is vLLM's
worker = MagicMock(get_finished=lambda: [done.pop() for _ in list(done)])
worker.submit_store = worker.submit_load = lambda job, *specs: done.append(TransferResult(job, True, 0)) or True
CPUOffloadingSpec.get_worker = lambda self, caches: worker
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
engine = LLM(folder, max_model_len=256, kv_offloading_size=0.01, **options).llm_engine  # OffloadingConnector
engine.add_request("0", {"prompt_token_ids": [7] * 70}, SamplingParams(max_tokens=8, detokenize=False))
try:
    [engine.step() for step in range(20) if step != 3 or engine.reset_prefix_cache(reset_running_requests=True)]
    print("the request is answered, as expected")
except AssertionError:
    sys.exit("a reset of a running request ends the engine by an AssertionError; expected: an answer")
