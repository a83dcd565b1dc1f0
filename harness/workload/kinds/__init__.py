"""The kinds of steps besides bursts of requests: each class says itself what the rooms need to know about it."""
