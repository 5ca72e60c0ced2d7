"""Adapters: small matrices that are trained in place of a model's own weights. `config` holds the sections."""
