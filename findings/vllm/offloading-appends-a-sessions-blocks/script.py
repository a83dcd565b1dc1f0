"""vLLM 0.32.0: OffloadingConnector stores a session's later blocks from its first ones. Exit status 1: the bug."""

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
ask, prompt = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False), {"prompt_token_ids": [7] * 70}
for _ in range(2):
    turn = engine.input_processor.process_inputs("0", prompt, ask, ("generate",), resumable=True)
    engine.engine_core.add_request(turn)  # as AsyncLLM does for each input of a stream
    [engine.engine_core.get_output() for _ in range(10)]
scheduler = engine.engine_core.engine_core.scheduler
blocks = scheduler.kv_cache_manager.get_block_ids("0")[0]
stored = scheduler.connector.connector_scheduler._req_status["0"].group_states[0].block_ids
sys.exit(stored != blocks and f"the connector's block table: {stored}; expected, as the scheduler's: {blocks}")
