"""vLLM 0.32.0: with OffloadingConnector, an engine that is paused cannot be put to sleep. Exit status 1: the bug."""

import os, sys, tempfile
from unittest.mock import MagicMock

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
CPUOffloadingSpec.get_worker = lambda self, caches: MagicMock(get_finished=list)  # its copies need a GPU
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
engine = LLM(folder, max_model_len=256, kv_offloading_size=0.01, **options).llm_engine  # OffloadingConnector
engine.add_request("0", {"prompt_token_ids": [7] * 70}, SamplingParams(max_tokens=8, detokenize=False))
engine.step(), engine.step()  # a store is under way
core = engine.engine_core.engine_core
core.pause_scheduler("keep", clear_cache=True)
try:
    core.pause_scheduler("keep", clear_cache=True)  # as sleep(1) does first
except AssertionError:
    sys.exit("a pause behind a pause ends in an AssertionError; expected: that nothing happens")
