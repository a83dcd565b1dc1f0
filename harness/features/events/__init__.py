"""KV events: what an engine publishes about its blocks, and their hashes."""
