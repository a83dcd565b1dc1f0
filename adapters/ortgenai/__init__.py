"""ONNX Runtime GenAI: its generator in this process."""
