"""What noise costs: false alarms against caught faults, measured through the real judging path."""
