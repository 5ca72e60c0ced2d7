"""Communication overlap for Megatron: presets, rules, and what Transformer Engine needs."""
