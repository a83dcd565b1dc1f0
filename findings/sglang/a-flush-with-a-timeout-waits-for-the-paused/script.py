"""SGLang 0.5.23: a flush with a timeout fails after a pause that retracts. Exit status 1: the bug."""

import asyncio, sys, tempfile

import sglang
from sglang.srt.managers.io_struct import PauseGenerationReqInput
from transformers import LlamaConfig

if __name__ == "__main__":  # the engine's processes import this file
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes)
    config.save_pretrained(folder := tempfile.mkdtemp())
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_total_tokens": 4096}
    engine = sglang.Engine(model_path=folder, device="cpu", attention_backend="torch_native", **options)
    wait, manager = engine.loop.run_until_complete, engine.tokenizer_manager
    ask = {"max_new_tokens": 1900, "ignore_eos": True}
    running = engine.loop.create_task(engine.async_generate(input_ids=[1, 2], sampling_params=ask))
    wait(asyncio.sleep(0.5))
    wait(manager.pause_generation(PauseGenerationReqInput(mode="retract")))
    assert not running.done()
    flushed = [wait(manager.flush_cache(seconds)).success for seconds in (3, None)]
    print(f"flushed during the pause, with a timeout and without: {flushed}; expected: [True, True]")
    sys.exit(flushed != [True, True])
