"""vLLM 0.32.0: with speculative decoding, the next input of a session counts as computed. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 256}
drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
engine = LLM(folder, speculative_config=drafts, **options).llm_engine
ask = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)
for tokens in ([89, 78] * 20, [50, 51, 52]):  # this model goes on with 89, 78, so that all drafts are accepted
    prompt = {"prompt_token_ids": tokens}
    turn = engine.input_processor.process_inputs("0", prompt, ask, ("generate",), resumable=True)
    engine.engine_core.add_request(turn)  # as AsyncLLM does for each input of a stream
    computed = engine.engine_core.engine_core.scheduler.requests["0"].num_computed_tokens
    [engine.engine_core.get_output() for _ in range(20)]
print(f"before the second input is computed, {computed} tokens count as computed; expected: 49, of 50")
sys.exit(computed > 49)
