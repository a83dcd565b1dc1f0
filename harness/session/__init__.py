"""One pytest session from options to exit code."""
