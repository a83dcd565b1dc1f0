"""OpenVINO GenAI 2026.4.1: preemption of whole prompts ends the process. Exit status 1: the bug."""

import os, sys, tempfile

import numpy, openvino, openvino.opset13 as op, openvino_genai as genai

folder, draw = tempfile.mkdtemp(), numpy.random.default_rng(0).standard_normal
linear = lambda hidden: op.matmul(hidden, draw((64, 64), "f4") / 4, False, True)
ids, empty = op.parameter([-1, -1], numpy.int64, name="input_ids"), numpy.zeros((1, 1, 0, 64), "f4")
hidden = op.unsqueeze(op.gather(draw((64, 64), "f4"), ids, 0), 1)
kept = [op.concat([op.gather(op.read_value(empty, name), [0], 0), linear(hidden)], 2) for name in "kv"]
attention = op.scaled_dot_product_attention(linear(hidden), *kept, numpy.float32(0))
(logits := op.result(linear(op.squeeze(attention, 1)))).output(0).set_names({"logits"})
sinks = [op.assign(new, name) for new, name in zip(kept, "kv")]
openvino.save_model(openvino.Model([logits], sinks, [ids], "model"), f"{folder}/openvino_model.xml", False)
scheduler, config = genai.SchedulerConfig(), genai.GenerationConfig(max_new_tokens=40, ignore_eos=True, eos_token_id=0)
scheduler.num_kv_blocks, scheduler.dynamic_split_fuse, scheduler.max_num_batched_tokens = 24, False, 4096
if not (child := os.fork()):
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU")
    pipeline.generate([openvino.Tensor(numpy.ones((1, 384), int))] * 6, [config] * 6)  # of 13 blocks each
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(f"the engine ends with exit code {status}; expected: 0")
sys.exit(status != 0)
