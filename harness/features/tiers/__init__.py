"""A second tier of KV, in memory or on disk, also over restarts."""

USES = ("lora", "pressure", "salts")
