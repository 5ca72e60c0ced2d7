"""Implementation of `mb recipes`."""

from mb_trainer.recipes import RECIPES


def recipes() -> int:
    """Print one line per recipe."""
    width = max(map(len, RECIPES))
    for name, recipe in RECIPES.items():
        print(f"{name:<{width}}  {recipe.summary}")
    return 0
