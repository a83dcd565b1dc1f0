"""SGLang 0.5.23: after a rejected turn, the next one is accepted beside the turn in flight. Exit status 1: the bug."""

import asyncio, sys, tempfile

import sglang
from transformers import LlamaConfig

if __name__ == "__main__":  # the engine's processes import this file
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, max_position_embeddings=8192, **sizes)
    config.save_pretrained(folder := tempfile.mkdtemp())
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_total_tokens": 9000}
    options |= {"device": "cpu", "attention_backend": "torch_native", "enable_streaming_session": True}
    engine = sglang.Engine(model_path=folder, **options)
    turn = {"input_ids": [1, 2], "session_params": {"id": engine.open_session(1000, streaming=True)}}
    engine.generate(sampling_params={"max_new_tokens": 4}, **turn)
    turns = []
    for tokens in (8000, 4, 4):
        ask = {"max_new_tokens": tokens, "ignore_eos": True}
        turns.append(engine.loop.create_task(engine.async_generate(sampling_params=ask, **turn)))
        engine.loop.run_until_complete(asyncio.sleep(1))
    ended = ["runs" if not one.done() else "refused" if one.exception() else "answered" for one in turns]
    print(f"a turn, and two more while it runs: {ended}; expected: ['runs', 'refused', 'refused']")
    sys.exit("answered" in ended[1:])
