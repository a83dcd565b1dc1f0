"""The second KV tier of an engine with the fingerprint worker: vLLM's own connectors, and one of ours that fails.

Schedulers, indexes and hashing are vLLM's. What stands in for a device here does nothing but copy bytes from host
memory to host memory, as late as a device may.
"""
