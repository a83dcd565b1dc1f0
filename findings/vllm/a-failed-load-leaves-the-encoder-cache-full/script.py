"""vLLM 0.32.0: after a failed load, a prompt with two images is not scheduled any more. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector, ExampleConnectorMetadata
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
loaded = []  # the connector offers 64 tokens of the prompt, once, and the load fails
ExampleConnector.get_num_new_matched_tokens = lambda self, request, computed: (64 - computed, False)
ExampleConnector.update_state_after_alloc = lambda self, request, blocks, n: (
    n and loaded.extend(*blocks.get_block_ids())
)
ExampleConnector.build_connector_meta = lambda self, output: ExampleConnectorMetadata()
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
tier = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
llm = LLM(folder, max_model_len=256, max_num_batched_tokens=24, max_num_seqs=1, kv_transfer_config=tier, **options)
core = llm.llm_engine.engine_core.engine_core
scheduler, hashes = core.scheduler, core.request_block_hasher
scheduler.encoder_cache_manager, scheduler.max_num_encoder_input_tokens = EncoderCacheManager(24), 24
images = [
    MultiModalFeatureSpec(MultiModalKwargsItem.dummy(), "image", name, PlaceholderRange(offset=start, length=16))
    for name, start in (("first", 16), ("second", 64))
]
request = Request("0", [7] * 100, SamplingParams(max_tokens=1), None, mm_features=images, block_hasher=hashes)
scheduler.add_request(request)
steps = []
for _ in range(8):
    output = scheduler.schedule()
    steps.append(output.total_num_scheduled_tokens)
    failed = KVConnectorOutput(invalid_block_ids=set(loaded[:2]))
    loaded.clear()
    answer = [[7] if request.num_computed_tokens >= request.num_tokens else []]
    scheduler.update_from_output(output, ModelRunnerOutput(["0"], {"0": 0}, answer, kv_connector_output=failed))
print(f"tokens of each step: {steps}; expected: 24 with the load, then the 100 of the prompt")
sys.exit(sum(steps) < 124)
