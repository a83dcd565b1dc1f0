"""Calibration of the comparison rule: score noise of one engine, differences between two engines."""
