"""finetuning."""
