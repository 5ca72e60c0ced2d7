"""Hybrid models with Mamba, attention, MLP and expert layers: section, rules, provider, parameter count."""
