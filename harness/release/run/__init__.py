"""What a qualification run checks before it starts, records, and seals at its end."""
