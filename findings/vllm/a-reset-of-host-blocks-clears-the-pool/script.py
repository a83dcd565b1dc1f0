"""vLLM 0.32.0: SimpleCPUOffloadConnector announces stored blocks as gone. Exit status 1: the bug."""

import os, sys, tempfile
from unittest.mock import MagicMock

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1 import simple_cpu_offload_connector as connector

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
worker = MagicMock(get_finished=lambda _: (None, None), build_connector_worker_meta=lambda: None)
connector.SimpleCPUOffloadWorker = lambda *_, **__: worker  # its copies need a GPU
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 256}
options["kv_events_config"] = {"enable_kv_cache_events": True, "publisher": "null"}
options["kv_transfer_config"] = {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}
llm = LLM(folder, **options)
names = []
scheduler = llm.llm_engine.engine_core.engine_core.scheduler
scheduler.kv_event_publisher.publish = lambda batch: names.extend(type(event).__name__ for event in batch.events)
llm.reset_prefix_cache(reset_connector=True)
llm.generate({"prompt_token_ids": [7] * 130}, SamplingParams(max_tokens=1, detokenize=False))
print(f"events after the reset: {names}; expected: none that clears behind BlockStored")
sys.exit("AllBlocksCleared" in names[names.index("BlockStored") :])
