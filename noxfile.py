"""Every check, per package and across packages: `nox -l` lists them, `nox` runs the ones marked with *.

Each isolated environment is made by uv from its cache by hard links, so a second environment with torch costs
about a second and no download.
"""

import os
import shutil
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox
import tomllib

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["pythons", "lint", "types", "build", "lanes"]

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
TRAINER_PYTHON = "3.12"
LIGHT_PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
LIGHT = ["mb-config", "mb-overlap", "mb-metrics", "mb-resilience", "mb-loop"]
HEAVY = ["mb-host", "mb-data", "mb-models", "mb-checkpoint"]
PACKAGES = LIGHT + HEAVY
ELSEWHERE = {
    "te": "needs a compiler and CUDA",
    "nvrx": "wheels that Megatron Core 0.19 can import beside it need glibc 2.39",
}
"""Extras that no session here installs, and why."""
OLDEST = [
    *(nox.param(LIGHT_PYTHONS[0], package, id=package) for package in LIGHT),
    *(nox.param(TRAINER_PYTHON, package, id=package) for package in ["mb-data", "mb-trainer"]),
]
UNITS = [
    *(nox.param(python, package, id=f"{package}, {python}") for package in LIGHT for python in LIGHT_PYTHONS),
    *(nox.param(TRAINER_PYTHON, package, id=package) for package in HEAVY),
]


def pyproject(package: str) -> dict:
    """Return the parsed pyproject.toml of a package."""
    folder = ROOT / "meta" if package == "mb-trainer" else ROOT / "packages" / package
    return tomllib.loads((folder / "pyproject.toml").read_text())


def wheel(package: str) -> Path:
    """Return the built wheel of a package."""
    (found,) = DIST.glob(f"{package.replace('-', '_')}-*.whl")
    return found


def requirement(package: str, extras: list[str]) -> str:
    """Return a requirement that names the built wheel of a package and nothing else."""
    chosen = f"[{','.join(extras)}]" if extras else ""
    return f"{package}{chosen} @ {wheel(package).as_uri()}"


def requirements_of_tests(package: str, *, bare: bool) -> list[str]:
    """Return what the tests of a package need beside it; a bare run brings no Megatron machinery and no examples."""
    groups = pyproject(package)["dependency-groups"]
    if bare:
        return [name for name in groups["test"] if name != "mb-host"]
    names = [*groups["test"], *groups.get("examples", [])]
    return [requirement("mb-host", ["mcore"]) if name == "mb-host" else name for name in names]


def usable_extras(package: str) -> list[str]:
    """Return the extras that install here without a compiler, a GPU or a newer system."""
    extras = pyproject(package)["project"].get("optional-dependencies", {})
    return [extra for extra in extras if extra not in ELSEWHERE]


def declared(package: str, extras: list[str]) -> list[str]:
    """Return what a package declares beside its siblings, so that a resolver sees it as direct requirements."""
    project = pyproject(package)["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return [spec for group in groups for spec in group if not spec.startswith("mb-")]


def interpreter_version(python: str) -> str:
    """Return the full version of an interpreter, or say that its checks are skipped."""
    command = [f"python{python}", "-c", "import sys; print(sys.version.split()[0])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "NOT FOUND, its checks are skipped"


def run_tests(session: nox.Session, package: str) -> None:
    """Run the tests of a package against what is installed in the session's environment."""
    session.run("python", "-c", "import sys; print('Python', sys.version.split()[0])")
    tests = "meta/tests" if package == "mb-trainer" else f"packages/{package}/tests"
    session.run("pytest", "-m", "not matrix", tests, *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(venv_backend="none")
def pythons(session: nox.Session) -> None:
    """Say which interpreters are here: the checks of a missing one are skipped."""
    for python in LIGHT_PYTHONS:
        session.log("Python %s: %s", python, interpreter_version(python))


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff (rules and format) and the island contract of import-linter."""
    session.run("uv", "run", "ruff", "check", ".", external=True)
    session.run("uv", "run", "ruff", "format", "--check", ".", external=True)
    session.run("uv", "run", "lint-imports", external=True)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Mypy --strict over every package, the trainer and the wiring of the Protocols."""
    sources = [f"packages/{package}/src" for package in PACKAGES]
    session.run("uv", "run", "mypy", *sources, "meta/src", "tests/wiring", external=True)


BUILT = "MB_WHEELS_ARE_BUILT"
"""Environment variable: tells the lanes to take the wheels that are there."""

LANES = {"packages": ["unit", "docs", "oldest"], "integration": ["integration"]}
"""Sessions that run beside each other, a list one after the other."""

LINES_OF_A_FAILURE = 120
"""Lines of a lane that failed, told again at the very end."""


@nox.session(venv_backend="none")
def build(session: nox.Session) -> None:
    """Build the wheel of every package into dist/."""
    if BUILT in os.environ:
        session.log("the wheels are there")
        return
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("uv", "build", "--all-packages", "--wheel", "--quiet", "--out-dir", str(DIST), external=True)
    session.log("built %s", ", ".join(sorted(path.name for path in DIST.glob("*.whl"))))


@nox.session(requires=["build"])
@nox.parametrize(["python", "package"], UNITS)
def unit(session: nox.Session, package: str) -> None:
    """One wheel alone in a clean environment, its tests run against it."""
    if package in LIGHT:
        session.install(requirement(package, []), *requirements_of_tests(package, bare=True))
        run_tests(session, package)
    if session.python == TRAINER_PYTHON and (package in HEAVY or usable_extras(package)):
        session.install(
            requirement(package, usable_extras(package)), *requirements_of_tests(package, bare=False)
        )
        run_tests(session, package)


@nox.session(venv_backend="none", requires=["build"])
def lanes(session: nox.Session) -> None:
    """Every package alone, its examples and lowest versions, beside the integration tests: a lane for each core."""
    with ThreadPoolExecutor(len(LANES)) as pool:
        failures = dict(zip(LANES, pool.map(run_lane, LANES), strict=True))
    failed = [name for name, end in failures.items() if end is not None]
    for name in failed:
        print(f"\nThe end of {name}, which failed:\n{failures[name]}")
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def run_lane(name: str) -> str | None:
    """Run the sessions of a lane in a process of their own, its lines marked; return its end where it fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nox", "--sessions", *LANES[name]],
        cwd=ROOT,
        env={**os.environ, BUILT: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = deque(maxlen=LINES_OF_A_FAILURE)
    for line in process.stdout:
        print(f"[{name}] {line}", end="", flush=True)
        end.append(line)
    code = process.wait()
    return None if code == 0 else "".join(end) or f"exit code {code}, no output"


@nox.session(python=TRAINER_PYTHON, requires=["build"])
def integration(session: nox.Session) -> None:
    """All wheels together: architecture, wiring, several processes, end to end."""
    wheels = [requirement(package, usable_extras(package)) for package in [*PACKAGES, "mb-trainer"]]
    session.install(*wheels, *requirements_of_tests("mb-trainer", bare=False), "import-linter")
    chosen = ["-m", "not matrix", "tests", "meta/tests"]
    session.run("pytest", *chosen, *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Run the examples of every README and of every package's docstring."""
    readmes = [
        "README.md",
        *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/README.md")),
        "meta/README.md",
    ]
    modules = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/src/*/__init__.py"))
    doctest = ["pytest", "--doctest-modules", "--doctest-glob=README.md"]
    session.run("uv", "run", *doctest, *readmes, *modules, "meta/src/mb_trainer/__init__.py", external=True)


@nox.session(requires=["build"])
@nox.parametrize(["python", "package"], OLDEST)
def oldest(session: nox.Session, package: str) -> None:
    """A wheel with the lowest versions that it declares (torch and Megatron Core: the workspace's)."""
    extras = [] if package in LIGHT else usable_extras(package)
    wheels = [requirement(package, extras)]
    if package == "mb-trainer":
        wheels += [requirement(name, usable_extras(name)) for name in PACKAGES]
    session.install("--resolution", "lowest-direct", *wheels, *declared(package, extras))
    session.install(*requirements_of_tests(package, bare=package in LIGHT))
    run_tests(session, package)


@nox.session(venv_backend="none")
@nox.parametrize("package", PACKAGES)
def bench(session: nox.Session, package: str) -> None:
    """Run the benchmarks of a package and print their tables."""
    for script in sorted((ROOT / "packages" / package).glob("benchmarks/bench_*.py")):
        session.run("uv", "run", "python", str(script), external=True)


@nox.session(venv_backend="none")
def verify(session: nox.Session) -> None:
    """Prove for a table of layouts that a resume is exact; words after -- choose rows by their names."""
    script = ["uv", "run", "python", "tests/verify_resume.py"]
    session.run(*script, *session.posargs, env={"OMP_NUM_THREADS": "1"}, external=True)


@nox.session(venv_backend="none")
def matrix(session: nox.Session) -> None:
    """Run the further rows of the tables of layouts, which the default checks leave out; about ten minutes."""
    tests = ["pytest", "-m", "matrix", "tests", *(f"packages/{package}/tests" for package in HEAVY)]
    session.run("uv", "run", *tests, *session.posargs, env={"OMP_NUM_THREADS": "1"}, external=True)


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Make trouble at every file operation of a save and a load, where the tests take a part; about an hour."""
    tests = "packages/mb-checkpoint/tests/test_faults.py"
    every = {"OMP_NUM_THREADS": "1", "MB_ALL_FAULTS": "1"}
    session.run("uv", "run", "pytest", tests, *session.posargs, env=every, external=True)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run the checks that need a CUDA device; elsewhere they are skipped with the reason."""
    tests = ["tests/gpu", "packages/mb-metrics/tests"]
    session.run("uv", "run", "pytest", "-m", "gpu", *tests, *session.posargs, external=True)
