"""Updates of the weights, pauses and sleep."""
