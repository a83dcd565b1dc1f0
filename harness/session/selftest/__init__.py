"""The scripted engine with planted bugs, and the self-test of the detector."""
