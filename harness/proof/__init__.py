"""Turns a finding into a confirmed, minimised and diagnosed counterexample."""
