"""Execution, judgement and proof; used by the suites."""
