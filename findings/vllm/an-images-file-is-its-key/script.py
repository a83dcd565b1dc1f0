"""vLLM 0.32.0: the same pixels as PNG and as BMP are two images for all caches. Exit status 1: as described."""

import io, sys

from PIL import Image
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media import MediaWithBytes

picture, hashes = Image.new("RGB", (28, 28), "red"), []
for name in ("PNG", "BMP"):
    picture.save(file := io.BytesIO(), name)
    media = MediaWithBytes(Image.open(file).convert("RGB"), file.getvalue())
    hashes.append(MultiModalHasher.hash_kwargs("sha256", image=media))
print(f"hashes of the same pixels: {hashes}; expected: one hash")
sys.exit(hashes[0] != hashes[1])
