"""vLLM's engine core in Coldproof's process, which Coldproof steps itself."""
