"""Values of YAML as a launch reads them: 12:00:00 is text. Requires PyYAML (extra `cli`)."""

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Safe loader that reads 12:00:00 as text.

    In YAML 1.1 it is 43200, a number to the base of 60, which Slurm would take for minutes.
    """


_BASE_60 = re.compile(r"[-+]?\d[\d_]*(:\d+)+(\.\d*)?$")
# the first pattern that matches determines the tag
_Loader.yaml_implicit_resolvers = {
    first_character: [("tag:yaml.org,2002:str", _BASE_60), *resolvers]
    for first_character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        YAMLError: The text is not YAML, or a value is not of its tag, such as the date 2024-99-99.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(f"a value is not of its tag ({error})") from error
