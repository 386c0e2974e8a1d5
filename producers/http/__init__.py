"""The OpenAI-compatible endpoint: a client of the workers like any other, that holds no model."""
