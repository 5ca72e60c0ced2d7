"""What follows from switches of the model."""

from __future__ import annotations

from mb_config.resolution import Resolution
from mb_config.rules.determinism import LIBRARY_SETTINGS

_DISPATCHER, _BACKEND = "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend"


def apply_model(run: Resolution) -> None:
    """Settings of the libraries for a deterministic run (V142), and a dispatcher that has a backend (V158)."""
    if run.has("model.deterministic_mode") and run.get("model.deterministic_mode"):
        _settings_of_libraries(run)
    if not (run.has(_DISPATCHER) and run.has(_BACKEND)):
        return
    if run.get(_DISPATCHER) == "flex" and run.get(_BACKEND) is None:
        run.set(_DISPATCHER, "alltoall", rule="V158", why="the flexible dispatcher has no backend")


def _settings_of_libraries(run: Resolution) -> None:
    variables = run.config.env_vars
    for name, values in LIBRARY_SETTINGS.items():
        if name not in variables:
            variables[name] = values[0]
            why = "the library then repeats its bits; the shell's value wins"
            run.record(f"env_vars.{name}", None, values[0], rule="V142", why=why)
