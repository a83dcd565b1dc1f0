"""The fingerprint worker: a vLLM worker that stores digests instead of computing keys and values."""
