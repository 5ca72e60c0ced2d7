"""From a command line to a configuration: a recipe, files and `KEY=VALUE`, each value with its origin.

`request.py` is the sequence; `registration.py` finds recipes, `hydra_grammar.py` parses overrides, `apply.py` sets
them, and `provenance.py` remembers who set what. `mb_config.overrides.variations` reads several values of a field.
"""
