"""llama.cpp (xllamacpp 2026.10.11549): a prompt that ends with an image ends the server. Exit status 1: the bug."""

import os, sys, tempfile
import gguf, numpy, xllamacpp

folder, draw, template = tempfile.mkdtemp(), numpy.random.default_rng(0).standard_normal, "{{ messages[0].content }}"
model, tower = gguf.GGUFWriter(f"{folder}/model", "olmo"), gguf.GGUFWriter(f"{folder}/tower", "clip.vision")
for file, blocks in ((model, 1), (tower, 0)):
    file.add_embedding_length(64), file.add_feed_forward_length(64), file.add_head_count(2), file.add_context_length(64)
    file.add_block_count(blocks), file.add_layer_norm_eps(1e-5), file.add_clip_projector_type("mlp")
    file.add_vision_image_size(64), file.add_vision_patch_size(64), file.add_vision_projection_dim(64)
    file.add_vision_image_mean([0.5] * 3), file.add_vision_image_std([0.5] * 3), file.add_clip_has_vision_encoder(True)
model.add_tokenizer_model("gpt2"), model.add_token_list([*map(chr, range(64, 128))]), model.add_token_merges(["A A"])
for part in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.OLMO]:
    model.add_tensor(gguf.TENSOR_NAMES[part].format(bid=0) + ".weight", draw((64, 64), "f4"))
for name, *shape in (("mm.0", 64), ("mm.2", 64), ("v.position_embd", 1), ("v.patch_embd", 64, 3, 64)):
    tower.add_tensor(f"{name}.weight", draw((*shape, 64), "f4")), tower.add_tensor(f"{name}.bias", draw(64, "f4"))
for file in (model, tower):
    file.write_header_to_file(), file.write_kv_data_to_file(), file.write_tensors_to_file()
options, image = xllamacpp.CommonParams(), {"url": "data:image/ppm;base64,UDYgMSAxIDI1NSAAAAA="}  # a pixel
options.model.path, options.mmproj.path, options.chat_template = f"{folder}/model", f"{folder}/tower", template
ask = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": image}]}]}
os.putenv("GGML_NO_BACKTRACE", "1"), os.fork() or sys.exit(not xllamacpp.Server(options).handle_chat_completions(ask))
print(f"exit code: {(code := os.waitstatus_to_exitcode(os.wait()[1]))}; expected: 0")
sys.exit(code != 0)
