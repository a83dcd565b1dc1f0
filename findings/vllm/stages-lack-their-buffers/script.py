"""vLLM 0.32.0 on a CPU: two pipeline stages in eager mode end the engine at once. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

if __name__ == "__main__":
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    folder = tempfile.mkdtemp()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder)
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 256}
    llm = LLM(folder, pipeline_parallel_size=2, **options)
    try:
        llm.generate({"prompt_token_ids": [7] * 34}, SamplingParams(max_tokens=4, detokenize=False))
        print("the request is answered, as expected")
    except EngineDeadError as problem:
        sys.exit(f"the first request ends the engine: {problem}; expected: an answer")
