"""TensorRT-LLM: attached servers."""
