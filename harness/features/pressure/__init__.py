"""A pool of KV blocks that is too small for what is sent."""
