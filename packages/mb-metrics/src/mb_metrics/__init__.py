"""Training metrics in any loop: loss, throughput and MFU on the console, in JSONL and in TensorBoard."""
