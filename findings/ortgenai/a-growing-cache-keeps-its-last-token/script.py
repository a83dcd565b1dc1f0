"""ONNX Runtime GenAI 0.18.0: KV that grows cannot be rewound by an answer's last token. Exit status 1: the bug."""

import subprocess, sys, tempfile

import numpy as np, onnxruntime_genai as og
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

set_seed(0)  # so that the answer is no end token
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).save_pretrained(folder := tempfile.mkdtemp())
PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a"))).save_pretrained(folder)
builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu", "-c", f"{folder}/cache"]
subprocess.run([*builder, "-i", folder, "-o", f"{folder}/onnx"], check=True, capture_output=True)
params = og.GeneratorParams(model := og.Model(f"{folder}/onnx"))
params.set_search_options(max_length=64, do_sample=False, past_present_share_buffer=False)
generator = og.Generator(model, params)
generator.append_tokens(np.int32([[5, 6, 7, 8]]))
generator.generate_next_token()
try:
    result = generator.rewind_to(4) or "yes"
except RuntimeError as refusal:
    result = f"no ({refusal})"
print(f"rewound by one token: {result}; expected: yes")
sys.exit(result != "yes")
