"""vLLM 0.32.0: half a chunk of a window is stored, all is loaded, with another prompt's KV. Exit status 1: the bug."""

import os, sys, tempfile
from unittest.mock import MagicMock
from transformers import Gemma3TextConfig
from vllm import LLM, SamplingParams
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
done, host, loaded = [], {}, set()  # a worker that notes whose KV it copies, as its copies need a GPU
firsts = lambda gpu: [first for first, blocks in zip(gpu.block_indices, gpu.group_sizes) if blocks]
places = lambda gpu, to: [2 * i + j for i, first in zip(to.block_ids, firsts(gpu)) for j in range(first % 2, 2)]
put = lambda job, gpu, to: [host.update(dict.fromkeys(places(gpu, to), ask[0])), done.append(job)]
get = lambda job, source, gpu: [loaded.update(host[place] for place in places(gpu, source)), done.append(job)]
ended = lambda: [TransferResult(done.pop(), True, 0) for _ in done[:]]
CPUOffloadingSpec.get_worker = lambda *_: MagicMock(submit_store=put, submit_load=get, get_finished=ended)
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "head_dim": 32, "sliding_window": 64, "sliding_window_pattern": 2}
Gemma3TextConfig(architectures=["Gemma3ForCausalLM"], **sizes).save_pretrained(path := tempfile.mkdtemp())
tier = {"kv_connector_extra_config": {"block_size": 64, "cpu_bytes_to_use": 81920}, "kv_role": "kv_both"}
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
engine = LLM(path, kv_transfer_config=tier | {"kv_connector": "OffloadingConnector"}, max_model_len=256, **options)
for ask in [*range(97)], [*range(20, 117)], [*range(97)], [*range(91), *range(200, 238)]:
    engine.generate([{"prompt_token_ids": ask}], SamplingParams(max_tokens=8, detokenize=False), use_tqdm=False)
sys.exit(print(f"prompt 0 loads the KV of prompts {sorted(loaded)}; expected: [0]") or 20 in loaded)
