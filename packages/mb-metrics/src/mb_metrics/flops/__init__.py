"""flops."""
