"""OpenAI's API, with vLLM's extra fields."""
