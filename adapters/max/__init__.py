"""MAX, Modular's inference server."""
