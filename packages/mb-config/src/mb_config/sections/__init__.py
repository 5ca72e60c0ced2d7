"""The sections that every Megatron trainer shares, one file per subject."""
