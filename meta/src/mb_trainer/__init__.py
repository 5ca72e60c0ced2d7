"""A complete LLM trainer on Megatron Core."""
