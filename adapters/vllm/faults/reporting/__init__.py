"""Faults of what is reported: cached-token counts, metrics, KV events, response options."""
