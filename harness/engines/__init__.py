"""What the harness knows of each engine beside vLLM: its cells, how it is started, what its controls change."""
