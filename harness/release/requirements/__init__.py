"""The frozen list of requirements and what the suites declare today."""
