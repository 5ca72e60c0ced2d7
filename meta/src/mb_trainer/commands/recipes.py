"""Implementation of `mb recipes`."""

from mb_trainer.registry import REGISTRY


def recipes() -> int:
    """Print one line per recipe."""
    width = max(map(len, REGISTRY.recipes))
    for name, recipe in REGISTRY.recipes.items():
        print(f"{name:<{width}}  {recipe.summary}")
    return 0
