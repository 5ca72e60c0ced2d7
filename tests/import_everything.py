"""Program: import every public name and every module of the installed packages that are its arguments.

What needs an optional dependency that is not installed is counted; every other error is printed, and is exit code 1.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterator


def statements(package: str) -> Iterator[str]:
    """Return the import of each public name, and of each module, but of programs."""
    root = importlib.import_module(package)
    yield from (f"from {package} import {name}" for name in vars(root)["_HOMES"])
    for module in pkgutil.walk_packages(root.__path__, f"{package}.", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            yield f"import {module.name}"


def error_of(statement: str, package: str) -> str | None:
    """Return the error of an import, "" if an optional dependency is missing, or None."""
    try:
        exec(statement, {})
    except ImportError as error:
        is_own = (error.name or package).partition(".")[0] == package
        return f"{statement}: {error!r}" if is_own else ""
    except Exception as error:  # noqa: BLE001 - every failure is printed
        return f"{statement}: {error!r}"
    return None


def main(packages: list[str]) -> int:
    """Import everything and return the exit code."""
    errors = [error_of(each, package) for package in packages for each in statements(package)]
    failures = [error for error in errors if error]
    print(*failures, sep="\n", end="\n" if failures else "")
    version = ".".join(map(str, sys.version_info[:3]))
    print(
        f"Python {version}: {errors.count(None)} imports, {errors.count('')} need what is not installed, "
        f"{len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
