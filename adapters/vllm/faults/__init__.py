"""Injectable faults of vLLM: the catalogue, the plugin that injects one, and the patches, by mechanism."""
