"""Typed configuration for Megatron trainers: sections, overrides with provenance, preflight rules."""
