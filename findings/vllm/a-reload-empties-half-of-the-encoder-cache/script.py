"""vLLM 0.32.0: after a reload of the weights, the scheduler counts on images that are gone. Exit status 1: the bug."""

import os, sys, tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).save_pretrained(folder := tempfile.mkdtemp())
llm = LLM(folder, max_model_len=256, skip_tokenizer_init=True, enforce_eager=True)
core = llm.llm_engine.engine_core.engine_core
worker, scheduler = core.model_executor.driver_worker.worker.model_runner.encoder_cache, core.scheduler
worker["image"], scheduler.encoder_cache_manager.cached["image"] = torch.zeros(4, 64), set()  # an image as encoded
llm.collective_rpc("reload_weights")
counted, held = "image" in scheduler.encoder_cache_manager.cached, "image" in worker
print(f"the scheduler counts on the image: {counted}, the worker has it: {held}; expected: both or none")
sys.exit(counted != held)
