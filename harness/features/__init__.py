"""Features: each is a folder, and `harness/feature_files.py` finds its files by their names."""
