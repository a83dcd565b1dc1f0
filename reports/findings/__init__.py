"""Shows the findings: every root cause that Coldproof has found in an engine."""
