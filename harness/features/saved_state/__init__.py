"""States of the cache that an engine saves and restores."""
