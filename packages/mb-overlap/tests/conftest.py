"""Fixture: Transformer Engine as not imported."""

import sys

import pytest


@pytest.fixture
def without_transformer_engine(monkeypatch):
    """Remove Transformer Engine, or the stub that a test of another package imported, from `sys.modules`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformer_engine"]:
        monkeypatch.delitem(sys.modules, name)
