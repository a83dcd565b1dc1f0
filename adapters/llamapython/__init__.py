"""llama-cpp-python: a Python binding of llama.cpp with prefix caches of its own and an OpenAI-compatible server."""
