"""Turns pytest's options into engine, cells, tests and shard. Raises all usage errors."""
