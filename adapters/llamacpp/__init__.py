"""llama.cpp: its server from the package xllamacpp."""
