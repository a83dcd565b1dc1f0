"""The record of a run, and what follows from its tokens alone."""
