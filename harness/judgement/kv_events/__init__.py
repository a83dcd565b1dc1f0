"""The hits that replayed KV events imply, and the computation of block hashes."""
