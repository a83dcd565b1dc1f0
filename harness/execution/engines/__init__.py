"""Engines of a run: started, shared, kept on standby, stopped; the engines of one cell."""
