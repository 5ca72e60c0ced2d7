"""Parameter-efficient fine-tuning with adapters, trained while the model's own weights are frozen."""
