"""The checkers, one in each file: they turn a history into findings."""
