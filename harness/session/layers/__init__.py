"""Runs several layers of one run at once, each in a process of its own."""
