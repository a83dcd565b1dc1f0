"""The section of one case: timeline, prompts, cached tokens and logprob margins."""
