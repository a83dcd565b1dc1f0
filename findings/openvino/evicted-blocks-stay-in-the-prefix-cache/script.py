"""OpenVINO GenAI 2026.4.1: evicted blocks stay in the prefix cache. Exit status 1: the bug."""

import sys, tempfile

import numpy, openvino, openvino.opset13 as op, openvino_genai as genai

folder, draw, sinks = tempfile.mkdtemp(), numpy.random.default_rng(0).standard_normal, []
linear = lambda hidden: op.matmul(hidden, draw((64, 64), "f4") / 4, False, True)
ids, empty = op.parameter([-1, -1], numpy.int64, name="input_ids"), numpy.zeros((1, 1, 0, 64), "f4")
hidden = op.unsqueeze(op.gather(draw((64, 64), "f4"), ids, 0), 1)
for layer in "12":  # with one layer, all blocks of a sequence have one hash
    kept = [op.concat([op.gather(op.read_value(empty, kind + layer), [0], 0), linear(hidden)], 2) for kind in "kv"]
    sinks += [op.assign(new, kind + layer) for new, kind in zip(kept, "kv")]
    hidden = op.scaled_dot_product_attention(linear(hidden), *kept, numpy.float32(0))
(logits := op.result(linear(op.squeeze(hidden, 1)))).output(0).set_names({"logits"})
openvino.save_model(openvino.Model([logits], sinks, [ids], "model"), f"{folder}/openvino_model.xml", False)
scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig(max_new_tokens=40, ignore_eos=True, eos_token_id=0)
scheduler.enable_prefix_caching, scheduler.use_cache_eviction, scheduler.num_kv_blocks = True, True, 64
pipeline, prompt = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU"), numpy.arange(900)[None] % 64
for length in (900, 70, 900, 70):
    pipeline.generate([openvino.Tensor(prompt[:, :length].copy())], [config])
print(f"percent of the pool in use: {(usage := pipeline.get_metrics().cache_usage):.3g}; expected: at most 100")
sys.exit(usage > 100)
