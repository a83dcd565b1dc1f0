"""SGLang 0.5.23: the abort of a request ends others whose rid begins with its own. Exit status 1: the bug."""

import asyncio, sys, tempfile

import sglang
from transformers import LlamaConfig

if __name__ == "__main__":  # the engine's processes import this file
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes)
    config.save_pretrained(folder := tempfile.mkdtemp())
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_total_tokens": 4096}
    engine = sglang.Engine(model_path=folder, device="cpu", attention_backend="torch_native", **options)
    ask, running = {"max_new_tokens": 500, "ignore_eos": True}, []
    for rid in ("user-1", "user-10", "user-2"):
        request = engine.async_generate(input_ids=[1, 2], sampling_params=ask, rid=rid)
        running.append(engine.loop.create_task(request))
    engine.loop.call_later(0.5, engine.tokenizer_manager.abort_request, "user-1")  # as when its client disconnects
    engine.loop.run_until_complete(asyncio.wait(running))
    ends = [one.result()["meta_info"]["finish_reason"]["type"] for one in running]
    print(f"user-1, which is aborted, user-10 and user-2 end: {ends}; expected: ['abort', 'length', 'length']")
    sys.exit(ends == ["abort", "abort", "length"])
