"""vLLM: its server (`vllm`) and its engine core in Coldproof's process (`vllm-inproc`)."""
