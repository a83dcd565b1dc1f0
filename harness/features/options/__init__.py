"""Options of a response: several answers, log probabilities, stop strings, structured output."""
