"""Shows runs of several engines side by side."""
