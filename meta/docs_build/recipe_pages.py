"""Page of the recipes."""

from api_pages import cell

from mb_trainer.recipes import RECIPES


def recipe_pages() -> dict[str, str]:
    """Return the page that lists the recipes."""
    lines = [
        "# Recipes",
        "",
        "Complete configurations by name: `mb pretrain llama31_8b`. `mb config show NAME --diff` prints what one sets.",
        "",
        "| recipe | purpose |",
        "|---|---|",
        *(f"| `{name}` | {cell(recipe.summary)} |" for name, recipe in RECIPES.items()),
    ]
    return {"reference/recipes.md": "\n".join([*lines, ""])}
