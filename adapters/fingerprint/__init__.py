"""vLLM without a neural network: a worker that keeps digests where a model keeps keys and values.

Scheduler, block pool, hashing, adapter plumbing, connectors and the server are vLLM's own. `digest` and `topology` are
plain arithmetic and plain data; `worker` is what vLLM loads (`--worker-cls`), and imports it.
"""
