"""ONNX Runtime GenAI 0.18.0: the last token of an answer is missing in the next turn. Exit status 1: the bug."""

import subprocess, sys, tempfile

import numpy as np, onnxruntime_genai as og
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

set_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).save_pretrained(folder := tempfile.mkdtemp())
PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a"))).save_pretrained(folder)
builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu", "-c", f"{folder}/cache"]
subprocess.run([*builder, "-i", folder, "-o", f"{folder}/onnx"], check=True, capture_output=True)
params = og.GeneratorParams(model := og.Model(f"{folder}/onnx"))
params.set_search_options(max_length=64, do_sample=False)
chat, new = og.Generator(model, params), og.Generator(model, params)
chat.append_tokens(np.int32([[5, 6, 7, 8]]))
chat.generate_next_token()  # no end token: the program stops here
new.append_tokens(np.int32([[*chat.get_sequence(0), 9, 10]]))
chat.append_tokens(np.int32([[9, 10]]))
same = list(chat.get_sequence(0)) == list(new.get_sequence(0))
difference = float(abs(chat.get_logits() - new.get_logits()).max())
print(f"equal sequences: {same}; largest difference of their scores: {difference:.4f}; expected: 0.0000")
sys.exit(difference > 1e-4)
