"""Process groups and seeds: the default group of any torch program, and groups in place of Megatron's globals."""
