"""The counters that show that a requirement was exercised."""
