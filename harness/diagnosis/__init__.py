"""From a violation to its cause: the same case with one thing changed at a time, and what follows from that."""
