"""mlx-lm: its HTTP server, which runs on Macs and, for tests, on the CPU of any Linux machine."""
