"""What an engine folder declares: start options, cells, control variants, faults, reproducers."""
