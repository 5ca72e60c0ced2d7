"""Write bridge_api.json, with which test_bridge.py compares the names of `mb_trainer.bridge`.

`python bridge_api.py PAGE.txt ...` reads pages of Megatron-Bridge's API documentation that are saved as text: public
names with their parameters, fields and methods. The key `different`, what differs here and why, is kept.
"""

import json
import re
import sys
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
SIGNATURE = re.compile(
    r"^(?:class |property |abstractmethod |static )?(?P<path>[A-Za-z_][\w.]*)(?P<rest>[(:#\s].*)$"
)


def entries(lines: list[str]) -> list[str]:
    """Return the lines of a page that end with the mark of an entry, joined if a signature has several lines."""
    found, start = [], None
    for number, line in enumerate(lines):
        if start is None and re.match(r"^(class |abstractmethod |static )?[A-Za-z_][\w.]*\($", line.strip()):
            start = number
        if line.endswith("#"):
            found.append(" ".join(lines[number if start is None else start : number + 1]).rstrip("#"))
            start = None
    return found


def parameters(text: str) -> list[str]:
    """Return the names of the parameters in a signature, without `self`, `/` and `*`."""
    parts, depth = [""], 0
    for char in text[text.index("(") + 1 :]:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            break
        parts = [*parts, ""] if char == "," and depth == 0 else [*parts[:-1], parts[-1] + char]
    names = [re.split(r"[:=]", part)[0].strip() for part in parts]
    return [name for name in names if name and name not in ("self", "/", "*")]


def read_page(text: str) -> dict[str, dict[str, object]]:
    """Return the public names of the module of a page."""
    lines = [line.strip() for line in text.splitlines()]
    module, names, owner = lines[0].rstrip("#"), {}, None
    for entry in entries(lines[1:]):
        match = SIGNATURE.match(entry if entry[-1:] in ")" else f"{entry} ")
        if match is None:
            continue
        path, is_class = match["path"], entry.startswith("class ")
        called = {"parameters": parameters(entry)} if "(" in match["rest"].partition(":")[0] else {}
        if path.startswith(f"{module}."):
            name = path.removeprefix(f"{module}.")
            names[name] = called if called else {}
            owner = names[name] if is_class else None
        elif owner is not None and not path.startswith("_") and "." not in path:
            kind = "methods" if called else "fields"
            owner.setdefault(kind, {})[path] = called.get("parameters", [])
    public = {name: what for name, what in names.items() if not name.startswith("_")}
    return {module.removeprefix("bridge."): public}


if __name__ == "__main__":
    kept = json.loads(FILE.read_text()).get("different", {}) if FILE.exists() else {}
    modules = {}
    for page in sys.argv[1:]:
        modules |= read_page(Path(page).read_text())
    FILE.write_text(json.dumps({"modules": modules, "different": kept}, indent=1, sort_keys=True) + "\n")
