"""Tools that adapters share: guarded processes, threads for blocking calls, the stepping loop, digests, redaction."""
