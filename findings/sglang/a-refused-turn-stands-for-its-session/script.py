"""SGLang 0.5.23: a turn that goes on from a refused one is answered without its session. Exit status 1: the bug."""

import sys, tempfile

import sglang
from transformers import LlamaConfig

if __name__ == "__main__":  # the engine's processes import this file
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, max_position_embeddings=128, **sizes)
    config.save_pretrained(folder := tempfile.mkdtemp())
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_total_tokens": 4096}
    engine = sglang.Engine(model_path=folder, device="cpu", attention_backend="torch_native", **options)
    chat, seen = engine.open_session(1000), None
    for name, before, tokens in (("first", None, 90), ("too long", "first", 60), ("third", "too long", 10)):
        turn = {"rid": name, "session_params": {"id": chat, "rid": before}}
        try:
            answer = engine.generate(input_ids=[7] * tokens, sampling_params={"max_new_tokens": 1}, **turn)
            seen = answer["meta_info"]["prompt_tokens"]
        except ValueError as refusal:
            seen = f"none: {refusal}"
    print(f"prompt tokens of the third turn: {seen}; expected: none, as it is refused, or the session's 101")
    sys.exit(seen == 11)
