"""The oracles, which give cold answers."""
