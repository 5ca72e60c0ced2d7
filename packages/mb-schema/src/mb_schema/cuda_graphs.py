"""The settings of CUDA graphs as rules of several packages read them: modules as text, list or enum members."""

from __future__ import annotations

FULL_ITERATION = "full_iteration"
"""A graph of the full iteration: an implementation, and the former name of a module that selects it."""
_WHOLE_LAYER = ("", "full")
"""Names without a list of modules, for the entire layer."""


def module_names(*fields: object) -> set[str]:
    """Return the names in the fields, such as `cuda_graph_modules` and the deprecated `cuda_graph_scope`.

    A field is text ("attn,mlp"), a list or an enum member. None, "" and "full", for entire layers, name no module.
    """
    lists = [
        list(field) if isinstance(field, list | tuple) else [field] for field in fields if field is not None
    ]
    texts = [str(entry).rpartition(".")[2] for entries in lists for entry in entries]
    return {name.strip() for text in texts for name in text.split(",")} - set(_WHOLE_LAYER)


def captures_full_iteration(implementation: object, *fields: object) -> bool:
    """Return whether one graph captures the full iteration, under its new or its former name."""
    if implementation == FULL_ITERATION:
        return True
    return implementation == "local" and FULL_ITERATION in module_names(*fields)
