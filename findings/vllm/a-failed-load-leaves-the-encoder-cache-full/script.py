"""vLLM 0.32.0: after a failed load, a prompt with two images is not scheduled any more. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.multimodal.inputs import MultiModalFeatureSpec as Image, MultiModalKwargsItem as Pixels, PlaceholderRange
from vllm.v1.core.sched.scheduler import KVConnectorOutput as Loads, ModelRunnerOutput, Request

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "enable_prefix_caching": False}
llm = LLM(folder, max_model_len=256, max_num_batched_tokens=24, max_num_seqs=1, block_size=32, **options)
scheduler = llm.llm_engine.engine_core.engine_core.scheduler
scheduler.recompute_kv_load_failures, scheduler.max_num_encoder_input_tokens, steps = True, 24, []
scheduler.encoder_cache_manager = type(scheduler.encoder_cache_manager)(24)  # room for one image
images = [Image(Pixels.dummy(), "image", str(at), PlaceholderRange(offset=at, length=16)) for at in (16, 72)]
scheduler.add_request(Request("0", [7] * 100, SamplingParams(max_tokens=1), None, mm_features=images))
for number in range(9):
    steps.append((output := scheduler.schedule()).total_num_scheduled_tokens)
    failed = Loads(invalid_block_ids={1} if number == 3 else set())  # what a connector reports after the 4th step
    scheduler.update_from_output(output, ModelRunnerOutput(["0"], {"0": 0}, [[]], kv_connector_output=failed))
print(f"tokens of each step: {steps}; expected: after 24 in the 4th one, 100 more")
sys.exit(0 in steps)
