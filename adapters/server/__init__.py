"""Engines behind HTTP: client, request bodies and streams, capability probes, client disconnects, KV event socket."""
