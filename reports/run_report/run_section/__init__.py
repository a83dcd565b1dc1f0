"""The section of the run: coverage, time, resources and environment."""
