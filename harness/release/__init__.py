"""Release qualification: a run whose report folder can be signed and verified."""
