"""`--engine endpoint`: any OpenAI-compatible server, attached by its URL."""
