"""Engine bugs that are injected on purpose, each a small patch of vLLM's own code: `--fault NAME`."""
