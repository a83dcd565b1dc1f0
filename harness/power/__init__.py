"""Detection power: which injected faults the suites notice, after how many requests, and which they do not."""
