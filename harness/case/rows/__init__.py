"""The rows of a case that reports show."""
