"""Shows the verdicts of several releases of one engine."""
