"""Which abstract states of an engine a run has reached."""
