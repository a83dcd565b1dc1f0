"""Diagnoses a case by controls: runs of the case with one thing changed at a time."""
