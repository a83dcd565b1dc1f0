"""KV connectors for the fingerprint worker: offloading without a GPU, and loads that fail."""
