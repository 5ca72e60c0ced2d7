"""Every check, per package and across packages: `nox -l` lists them, `nox` runs the ones marked with *.

Each isolated environment is made by uv from its cache by hard links, so a second environment with torch costs
about a second and no download.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import nox
import tomllib

sys.path.insert(0, str(Path(__file__).parent / ".ci"))
from constraints import (
    as_requirements,
    direct_dependencies,
    kept_by_hand,
    locked_versions,
    with_versions,
)
from release import ReleaseError, plan_release

# Tests start hundreds of processes: with compiled modules, each imports torch and Megatron Core in half the time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parent / ".nox" / "compiled")

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["pythons", "build", "parallel"]

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
TRAINER_PYTHON = "3.12"
LIGHT_PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
LIGHT = [
    "mb-schema",
    "mb-config",
    "mb-plan",
    "mb-overlap",
    "mb-metrics",
    "mb-resilience",
    "mb-loop",
    "mb-launch",
    "mb-verify",
    "mb-guard",
]
HEAVY = ["mb-host", "mb-data", "mb-models", "mb-checkpoint"]
PACKAGES = LIGHT + HEAVY
WITHOUT_MEGATRON = ["mb-host", "mb-data", "mb-checkpoint"]
"""Heavy packages that support the lowest Python without their extra `mcore`, since Megatron Core needs a newer one."""
TEST_PACKAGES = {"mb-host": ["mcore"], "mb-guard": []}
"""Packages, with their extras, that the tests of the others may use, and no test of a bare environment."""
ELSEWHERE = {
    "te": "needs a compiler and CUDA",
}
"""Extras that no session here installs, and why."""
HELD_BACK = {
    "nemo-run": "requires one release of cloudpickle, of httpx and of others",
    "launch": "contains nemo-run",
}
"""Extras that `newest` leaves out, and why."""
OLDEST = [
    *(nox.param(LIGHT_PYTHONS[0], package, id=package) for package in LIGHT),
    *(
        nox.param(LIGHT_PYTHONS[0], package, id=f"{package}, {LIGHT_PYTHONS[0]}")
        for package in WITHOUT_MEGATRON
    ),
    *(nox.param(TRAINER_PYTHON, package, id=package) for package in ["mb-data", "mb-trainer"]),
    nox.param(TRAINER_PYTHON, "mb-launch", id="mb-launch, extras"),
]
OLDEST_TRAINER_TESTS = [
    f"meta/tests/test_{name}.py"
    for name in (
        *("bad_requests", "ckpt", "cli", "data_commands"),
        *("plan", "report_command", "sweep"),
    )
]
"""Tests of the trainer that use what it declares itself: typer, rich, psutil and tensorboard."""
OLDEST_TORCH_TESTS = [
    "packages/mb-host/tests/test_patches.py",
    "packages/mb-host/tests/test_parity.py",
    "packages/mb-host/tests/test_hybrid.py",
    "packages/mb-checkpoint/tests/test_load.py",
    "packages/mb-checkpoint/tests/test_resume.py",
    "packages/mb-checkpoint/tests/test_save.py",
]
"""Tests that hold the lower bounds of torch and Megatron Core: training, saving and loading on several ranks."""
OLDEST_BACKENDS = {
    "tensorboard": ["tensorboard"],
    "wandb": ["wandb"],
    "mlflow": ["mlflow"],
    "comet": ["comet"],
    "energy": ["energy"],
    "inspect": ["tensor_inspect"],
    "cli": ["cli"],
    "transformers": ["transformers_callback"],
    "accelerate": ["accelerate_tracker"],
    "lightning": ["lightning_logger"],
}
"""Extras of mb-metrics with the tests of the service or library that each installs."""
UNITS = [
    *(nox.param(LIGHT_PYTHONS[-1], package, id=f"{package}, {LIGHT_PYTHONS[-1]}") for package in LIGHT),
    *(nox.param(TRAINER_PYTHON, package, id=package) for package in PACKAGES),
]
"""Wheels alone: light packages without extras on the newest Python (`oldest` has the lowest), each with all extras."""
FURTHER_PYTHONS = [
    nox.param(python, package, id=f"{package}, {python}")
    for package in LIGHT
    for python in LIGHT_PYTHONS[1:-1]
]

IMPORTED_WITHOUT_TORCH = ["mb-host", "mb-data", "mb-checkpoint"]
"""Packages that require torch, whose sections, rules and commands `imports` loads without it."""

SMOKE_WITH_NEWEST = (
    ("pretrain", "gpt_tiny", "--out=run", "train.train_iters=2", "validation.eval_iters=0"),
    (
        *("verify-resume", "gpt_tiny", "--steps=3", "--cut=2", "--nproc=2"),
        *("model.tensor_model_parallel_size=2", "checkpoint.async_save=true"),
        *(
            "train.global_batch_size=2",
            "train.micro_batch_size=2",
            "model.seq_length=32",
            "dataset.seq_length=32",
        ),
    ),
)
"""Commands of `newest_smoke`: a run, and the proof that one with tensor parallelism and asynchronous saves resumes."""

DEV = ("uv", "run", "--group", "dev")
"""Start of a command in the workspace's environment, with the tools of developers."""

WHEELS = "wheels"
"""Folder of `nox -s wheels`."""

GUARDED_VERSIONS = ["0.19.0", "0.19.1", "0.19.2"]
"""Releases of Megatron Core with which the bounds of mb-guard's records are compared."""

IN_PARALLEL = ("--numprocesses=auto", "--dist=loadfile")
"""Options of pytest-xdist: a process per core, each test file in one of them."""
NO_TESTS = 5
"""Exit code of pytest if no test is selected."""
SLOWEST = ("--durations=15", "--durations-min=4")
"""Options of pytest that print the tests which take longest."""
WITHOUT_CONSTRAINTS = "--no-config"
"""Option of uv that leaves the workspace's known-good versions out."""
VERSIONS = """
from importlib.metadata import distributions
print(*sorted(f"{each.name}=={each.version}" for each in distributions()))
"""


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


def alone(package: str, extras: list[str]) -> list[str]:
    """Return the requirements that install a built wheel: itself, and mb-schema, which no index has."""
    return [
        requirement(name, extras if name == package else []) for name in dict.fromkeys([package, "mb-schema"])
    ]


def requirements_of_tests(package: str, *, bare: bool) -> list[str]:
    """Return what the tests of a package need in addition to it; a bare run has no Megatron Core."""
    groups = pyproject(package)["dependency-groups"]
    if bare:
        return [name for name in groups["test"] if name not in TEST_PACKAGES]
    return [
        requirement(name, TEST_PACKAGES[name]) if name in TEST_PACKAGES else name for name in groups["test"]
    ]


def usable_extras(package: str) -> list[str]:
    """Return the extras that install here without a compiler, a GPU or a newer system."""
    extras = pyproject(package)["project"].get("optional-dependencies", {})
    return [extra for extra in extras if extra not in ELSEWHERE]


def declared(package: str, extras: list[str]) -> list[str]:
    """Return the third-party requirements of a package, so that a resolver treats them as direct."""
    project = pyproject(package)["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return [spec for group in groups for spec in group if not spec.startswith("mb-")]


def first_example(package: str) -> str:
    """Return the first example of a package's README, which runs where its wheel and its extras are installed."""
    readme = (ROOT / "packages" / package / "README.md").read_text()
    return re.search(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[1]


def core_versions(session: nox.Session) -> list[str]:
    """Return the options of uv that keep torch and Megatron Core at the workspace's versions, and nothing else."""
    file = Path(session.create_tmp(), "core.txt").absolute()
    file.write_text("\n".join(kept_by_hand((ROOT / "pyproject.toml").read_text())) + "\n")
    return [WITHOUT_CONSTRAINTS, "--constraint", str(file)]


def interpreter_version(python: str) -> str:
    """Return the full version of an interpreter, or a note that its checks are skipped."""
    command = [f"python{python}", "-c", "import sys; print(sys.version.split()[0])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "NOT FOUND, its checks are skipped"


def run_tests(
    session: nox.Session,
    package: str,
    *,
    posargs: Sequence[str] | None = None,
    tests: Sequence[str] | None = None,
    slow: bool = False,
) -> None:
    """Run the tests of a package, all unless some are named, against what is installed in the environment.

    `slow`: also those that take long, which run with one Python and the newest versions alone.
    """
    posargs = session.posargs if posargs is None else posargs
    session.run("python", "-c", "import sys; print('Python', sys.version.split()[0])")
    tests = tests or ["meta/tests" if package == "mb-trainer" else f"packages/{package}/tests"]
    marked = "not matrix" if slow else "not matrix and not slow"
    session.run("pytest", "-m", marked, *SLOWEST, *tests, *posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(venv_backend="none")
def pythons(session: nox.Session) -> None:
    """Print which interpreters are installed; the checks of a missing one are skipped."""
    for python in LIGHT_PYTHONS:
        session.log("Python %s: %s", python, interpreter_version(python))


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff (rules and format) and the island contract of import-linter."""
    session.run(*DEV, "ruff", "check", ".", external=True)
    session.run(*DEV, "ruff", "format", "--check", ".", external=True)
    session.run(*DEV, "lint-imports", external=True)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Mypy --strict over every package, the trainer and the wiring of the Protocols."""
    sources = [f"packages/{package}/src" for package in PACKAGES]
    session.run(*DEV, "mypy", *sources, "meta/src", "tests/wiring", external=True)


BUILT = "MB_WHEELS_ARE_BUILT"
"""Environment variable, set for the parallel sessions: the wheels in dist/ are up to date."""

LONGEST = [
    "newest_smoke",  # its 6 GB are gone before the sessions of the oldest versions need theirs
    *("integration(end_to_end)", "integration(multi_process)", "unit(mb-checkpoint)", "unit(mb-models)"),
    *("integration(trainer)", "integration(exchange)", "unit(mb-launch)", "oldest(mb-checkpoint, 3.10)"),
    *("unit(mb-metrics)", "oldest(mb-data)", "oldest_backends", "unit(mb-guard)", "unit(mb-host)"),
    *("integration(architecture)", "unit(mb-data)", "unit(mb-verify)", "unit(mb-resilience)"),
    *("oldest(mb-launch, extras)", "oldest(mb-host, 3.10)", "lint", "types", "docs", "installs"),
]
PARALLEL = [
    *dict.fromkeys(
        (
            *LONGEST,
            *(f"unit({package})" for package in PACKAGES),
            *(f"oldest({package})" for package in (*LIGHT, "mb-trainer")),
            *(f"oldest({package}, {LIGHT_PYTHONS[0]})" for package in WITHOUT_MEGATRON),
            *(f"unit({package}, {LIGHT_PYTHONS[-1]})" for package in LIGHT),
            *(f"imports-{python}" for python in LIGHT_PYTHONS),
        )
    )
]
"""Sessions that `parallel` runs, the longest of them early, so that all cores finish together."""

MOST_AT_ONCE = 4
"""Sessions that run at the same time at most: each may start four ranks, of 1 GiB each."""

SESSION_TIMEOUT = 40 * 60.0
"""Seconds after which a parallel session is killed with its processes and counts as failed."""

RUNNING: list[subprocess.Popen] = []
"""Parallel sessions started so far; a Ctrl-C of the terminal does not reach them, since each has its own group."""

LINES_OF_A_FAILURE = 120
"""Lines of a failed session that are printed again at the end."""


@nox.session(venv_backend="none")
def build(session: nox.Session) -> None:
    """Build the wheel of every package into dist/, and check how a package index would show it."""
    if BUILT in os.environ:
        session.log("the wheels are built")
        return
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("uv", "build", "--all-packages", "--wheel", "--quiet", "--out-dir", str(DIST), external=True)
    wheels = sorted(DIST.glob("*.whl"))
    session.run(
        "uv",
        "tool",
        "run",
        "--quiet",
        "twine",
        "check",
        "--strict",
        *map(str, wheels),
        external=True,
        silent=True,
    )
    session.log("built %s", ", ".join(path.name for path in wheels))


@nox.session(venv_backend="none", requires=["build"])
def wheels(session: nox.Session) -> None:
    """Copy the wheel of every package into wheels/, for `pip install --find-links wheels mb-metrics`."""
    shutil.rmtree(ROOT / WHEELS, ignore_errors=True)
    shutil.copytree(DIST, ROOT / WHEELS)
    session.log("wheels of %s are in %s", ", ".join(PACKAGES), ROOT / WHEELS)


@nox.session(python=TRAINER_PYTHON, requires=["build"])
def installs(session: nox.Session) -> None:
    """The lines of the page "Install" with pip itself: one package of the clone, editable, and by name from wheels."""
    session.install("pip", "hatchling", "editables")
    pip = ["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    check = ["python", "-c", "import mb_metrics; mb_metrics.Metrics([])"]
    ways = (
        ["./packages/mb-schema", "./packages/mb-metrics"],
        ["-e", "./packages/mb-schema", "-e", "./packages/mb-metrics"],
        ["--find-links", str(DIST), "mb-metrics"],
    )
    for way in ways:
        session.run(*pip, *way)
        session.run(*check)
        session.run("python", "-m", "pip", "uninstall", "--yes", "--quiet", "mb-metrics", "mb-schema")
    # all packages: torch is not installed, so without what they require
    session.run(*pip, "--no-deps", "--no-build-isolation", "-r", "packages/editable.txt")
    session.run("python", "-m", "pip", "uninstall", "--yes", "--quiet", *PACKAGES, "mb-trainer")


@nox.session(requires=["build"])
@nox.parametrize(["python", "package"], UNITS)
def unit(session: nox.Session, package: str) -> None:
    """One wheel alone in a clean environment, its tests run against it."""
    bare = session.python != TRAINER_PYTHON
    extras = [] if bare else usable_extras(package)
    session.install(*alone(package, extras), *requirements_of_tests(package, bare=bare))
    run_tests(session, package, slow=not bare)
    if not bare:
        example = Path(session.create_tmp(), "first_example.txt").absolute()
        example.write_text(first_example(package))
        with session.chdir(example.parent):
            session.run("python", "-m", "doctest", "-o", "ELLIPSIS", str(example))


@nox.session(requires=["build"])
@nox.parametrize(["python", "package"], FURTHER_PYTHONS)
def further_pythons(session: nox.Session, package: str) -> None:
    """Light packages without extras on the Pythons between the lowest and the newest."""
    session.install(*alone(package, []), *requirements_of_tests(package, bare=True))
    run_tests(session, package)


@nox.session(venv_backend="none", requires=["build"])
def parallel(session: nox.Session) -> None:
    """All sessions of `PARALLEL`: style, types, each wheel alone, its lowest versions, examples, integration tests."""
    if run_in_process("integration_environment") is not None:
        session.error("failed: integration_environment")
    # one more than cores: a session waits a quarter of its time, for processes that start and for timeouts
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)) + 1, MOST_AT_ONCE)) as pool:
        ends = [pool.submit(run_in_process, name) for name in PARALLEL]
        try:
            failures = {name: end.result() for name, end in zip(PARALLEL, ends, strict=True)}
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in RUNNING:
                kill_processes_of(process)
            raise
    failed = [name for name, end in failures.items() if end is not None]
    for name in failed:
        print(f"\nThe end of {name}, which failed:\n{failures[name]}")
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def run_in_process(name: str) -> str | None:
    """Run a session in a process group of its own, its lines prefixed; return the last ones where it fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nox", "--sessions", name],
        cwd=ROOT,
        env={**os.environ, BUILT: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    RUNNING.append(process)
    deadline = Timer(SESSION_TIMEOUT, kill_processes_of, [process])
    deadline.daemon = True
    deadline.start()
    end = deque(maxlen=LINES_OF_A_FAILURE)
    for line in process.stdout:
        print(f"[{name}] {line}", end="", flush=True)
        end.append(line)
    code = process.wait()
    deadline.cancel()
    print(f"[{name}] ended; {shutil.disk_usage(ROOT).free / 1e9:.1f} GB of the disk are free", flush=True)
    return None if code == 0 else "".join(end) or f"exit code {code}, no output"


def kill_processes_of(session: subprocess.Popen) -> None:
    """Kill a parallel session that is running, with the processes that it started."""
    if session.poll() is None:
        os.killpg(session.pid, signal.SIGKILL)


def in_repository(pattern: str) -> list[str]:
    """Return the files that match a pattern, relative to the repository."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


EXCHANGE = ("test_*hugging_face*.py", "test_*megatron*.py")
"""End-to-end tests of what others have written, or read; a session of their own, since all together take longest."""

INTEGRATION = {
    "architecture": ["tests/architecture", "tests/goldens", "tests/wiring", "tests/scale", "tests/gpu"],
    "end_to_end": ["tests/end_to_end", *(f"--ignore-glob=*/end_to_end/{files}" for files in EXCHANGE)],
    "exchange": [file for files in EXCHANGE for file in in_repository(f"tests/end_to_end/{files}")],
    "multi_process": ["tests/multi_process"],
    "trainer": ["meta/tests"],
}
"""Parts of the integration tests, which share an environment."""


@nox.session(python=TRAINER_PYTHON, requires=["build"])
def integration_environment(session: nox.Session) -> None:
    """Install all wheels together, for the integration tests."""
    wheels = [requirement(package, usable_extras(package)) for package in [*PACKAGES, "mb-trainer"]]
    session.install(*wheels, *requirements_of_tests("mb-trainer", bare=False), "import-linter")


@nox.session(venv_backend="none")
@nox.parametrize("part", [nox.param(part, id=part) for part in INTEGRATION])
def integration(session: nox.Session, part: str) -> None:
    """All wheels together: architecture, wiring, several processes, end to end, the trainer's own tests."""
    programs = ROOT / ".nox" / "integration_environment" / "bin"
    if not (programs / "pytest").exists():
        session.error("run the session integration_environment first")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    chosen = ["-m", "not matrix", *SLOWEST, *INTEGRATION[part], *session.posargs]
    session.run(str(programs / "pytest"), *chosen, env={"OMP_NUM_THREADS": "1", "PATH": path}, external=True)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the documentation strictly into .nox/site; run the examples of its pages, READMEs and docstrings."""
    # the notice of the theme about the next version of MkDocs
    quiet = {"NO_MKDOCS_2_WARNING": "1"}
    # not --quiet, which would hide warnings from --strict
    build = ["mkdocs", "build", "--strict", "--config-file", "meta/mkdocs.yml"]
    session.run(*DEV, "--group", "docs", *build, env=quiet, external=True)
    pages = [
        "README.md",
        *in_repository("packages/*/README.md"),
        "meta/README.md",
        *in_repository("meta/docs/**/*.md"),
    ]
    modules = in_repository("packages/*/src/*/__init__.py")
    # pytest collects a module by its dir(), which imports the lazy names and with them Megatron Core
    run = "import mb_host, pytest, sys; mb_host.install(); sys.exit(pytest.main(sys.argv[1:]))"
    doctest = ["python", "-c", run, "--doctest-modules", "--doctest-glob=*.md"]
    session.run(*DEV, *doctest, *pages, *modules, "meta/src/mb_trainer/__init__.py", external=True)


@nox.session(requires=["build"])
@nox.parametrize(["python", "package"], OLDEST)
def oldest(session: nox.Session, package: str) -> None:
    """A wheel with the lowest versions that it declares (torch and Megatron Core: the workspace's)."""
    bare = session.python != TRAINER_PYTHON
    extras = [] if bare else usable_extras(package)
    wheels = alone(package, extras)
    if package == "mb-trainer":
        wheels = [requirement(name, usable_extras(name)) for name in [*PACKAGES, package]]
    kept = core_versions(session)
    session.install(*kept, "--resolution", "lowest-direct", *wheels, *declared(package, extras))
    session.install(*kept, *requirements_of_tests(package, bare=bare))
    run_tests(session, package, tests=OLDEST_TRAINER_TESTS if package == "mb-trainer" else None)


@nox.session(python=TRAINER_PYTHON, requires=["build"])
def oldest_backends(session: nox.Session) -> None:
    """The lowest metric back-ends and safetensors that the packages declare, with the tests that write to them."""
    chosen = {"mb-metrics": [*OLDEST_BACKENDS], "mb-models": ["hf"]}
    specs = [spec for package, extras in chosen.items() for spec in declared(package, extras)]
    wheels = [requirement(package, extras) for package, extras in {"mb-schema": [], **chosen}.items()]
    kept = core_versions(session)
    session.install(*kept, "--resolution", "lowest-direct", *wheels, *specs)
    # the server of the lowest MLflow, which its tests start, does not import with a newer SQLAlchemy
    session.install(
        *kept,
        *(requirement(name, extras) for name, extras in TEST_PACKAGES.items()),
        *("pytest", "hypothesis", "setuptools", "sqlalchemy<2.1"),
    )
    session.run("python", "-c", VERSIONS)
    tests = [
        f"packages/mb-metrics/tests/test_{name}.py"
        for extra in OLDEST_BACKENDS
        for name in OLDEST_BACKENDS[extra]
    ]
    session.run("pytest", *tests, env={"OMP_NUM_THREADS": "1"})
    # the lowest transformers computes some models otherwise; a newer one may require a newer safetensors
    session.install(*kept, "--upgrade-package", "transformers", "transformers>=5")
    without_other_families = ["-k", "llama or not (logits or gradients or two_ranks)"]
    session.run(
        "pytest",
        "packages/mb-models/tests/test_hf.py",
        *without_other_families,
        env={"OMP_NUM_THREADS": "1"},
    )


@nox.session(python=TRAINER_PYTHON, requires=["build"])
def oldest_torch(session: nox.Session) -> None:
    """The lowest torch and Megatron Core that the packages declare, not the workspace's, with what depends on them."""
    chosen = {package: ["mcore"] for package in ("mb-host", "mb-checkpoint")}
    specs = [spec for package, extras in chosen.items() for spec in declared(package, extras)]
    wheels = [requirement(package, extras) for package, extras in {"mb-schema": [], **chosen}.items()]
    session.install(WITHOUT_CONSTRAINTS, "--resolution", "lowest-direct", *wheels, *specs)
    session.install(WITHOUT_CONSTRAINTS, requirement("mb-guard", []), "pytest", "hypothesis", "setuptools")
    session.run("python", "-c", VERSIONS)
    session.run(
        "pytest", "-m", "not matrix", *OLDEST_TORCH_TESTS, *session.posargs, env={"OMP_NUM_THREADS": "1"}
    )


@nox.session(python=TRAINER_PYTHON, requires=["build"])
def newest(session: nox.Session) -> None:
    """All packages with the newest releases on the index; names of packages after -- choose whose tests run."""
    names = [*PACKAGES, "mb-trainer"]
    extras = {
        package: [each for each in usable_extras(package) if each not in HELD_BACK] for package in names
    }
    wheels = [requirement(package, extras[package]) for package in names]
    tests = {name for package in names for name in pyproject(package)["dependency-groups"]["test"]}
    further = sorted(name for name in tests if name not in TEST_PACKAGES)
    session.install(WITHOUT_CONSTRAINTS, "--upgrade", *wheels, *further, "import-linter")
    session.run("python", "-c", VERSIONS)
    failed = []
    for package in session.posargs or names:
        try:
            run_tests(session, package, posargs=(), slow=True)
        except nox.command.CommandFailed:
            failed.append(package)
    if not session.posargs:
        session.run("pytest", "-m", "not matrix", "tests", env={"OMP_NUM_THREADS": "1"})
    if failed:
        session.error(f"failed with the newest releases: {', '.join(failed)}")


@nox.session(python=TRAINER_PYTHON, requires=["build"])
def newest_smoke(session: nox.Session) -> None:
    """What pip installs today: the commands of `SMOKE_WITH_NEWEST` with the newest releases on the index.

    No other session has this torch with its CUDA, 5 GB: environment and downloads are deleted at the end.
    """
    wheels = [requirement(package, []) for package in [*PACKAGES, "mb-trainer"]]
    temporary = Path(session.create_tmp())
    shutil.rmtree(temporary, ignore_errors=True)
    folder = temporary / "runs"
    folder.mkdir(parents=True)
    try:
        session.install(WITHOUT_CONSTRAINTS, f"--cache-dir={temporary / 'cache'}", "--upgrade", *wheels)
        session.run("python", "-c", VERSIONS)
        with session.chdir(folder):
            for arguments in SMOKE_WITH_NEWEST:
                session.run("mb", *arguments, env={"OMP_NUM_THREADS": "1"})
    finally:
        shutil.rmtree(temporary)
        shutil.rmtree(session.virtualenv.location)


@nox.session(python=LIGHT_PYTHONS, requires=["build"])
def imports(session: nox.Session) -> None:
    """Every public name and module that needs no torch, on each Python; `unit` and `oldest` import the others."""
    session.install(*(requirement(package, []) for package in LIGHT))
    session.install("--no-deps", *(requirement(package, []) for package in IMPORTED_WITHOUT_TORCH))
    modules = [package.replace("-", "_") for package in [*LIGHT, *IMPORTED_WITHOUT_TORCH]]
    session.run("python", "tests/import_everything.py", *modules)


@nox.session(venv_backend="none")
def constraints(session: nox.Session) -> None:
    """Resolve the newest versions of the direct dependencies; write them to the two lists of constraints."""
    project = ROOT / "pyproject.toml"
    project.write_text(with_versions(project.read_text(), {}, ()))
    session.run("uv", "lock", "--upgrade", external=True)
    versions = locked_versions(ROOT / "uv.lock")
    project.write_text(with_versions(project.read_text(), versions, direct_dependencies(ROOT)))
    (ROOT / "packages" / "constraints.txt").write_text(as_requirements(project.read_text()))
    session.run("uv", "lock", external=True)
    session.log("run nox with them, and commit pyproject.toml and packages/constraints.txt")


@nox.session(venv_backend="none")
def release(session: nox.Session) -> None:
    """Release one package: `nox -s release -- mb-metrics [VERSION] [--dry-run]`; see the page "Releases"."""
    names = [each for each in session.posargs if each != "--dry-run"]
    if len(names) not in (1, 2):
        session.error("name one package: nox -s release -- mb-metrics [VERSION] [--dry-run]")
    tags = {*session.run("git", "tag", "--list", external=True, silent=True).split()}
    try:
        planned = plan_release(names[0], root=ROOT, tags=tags, version=names[1] if names[1:] else None)
    except ReleaseError as error:
        session.error(str(error))
    session.log(
        "%s: %s", planned.tag, ", ".join(str(file.relative_to(ROOT)) for file in planned.files) or "as it is"
    )
    if "--dry-run" in session.posargs:
        return
    if session.run("git", "status", "--porcelain", external=True, silent=True).strip():
        session.error(
            "the working tree has changes. Commit them first, so that the tag contains what was checked."
        )
    for file, text in planned.files.items():
        file.write_text(text)
    part = "integration(trainer)" if names[0] == "mb-trainer" else f"unit({names[0]})"
    needed = ["integration_environment", part] if names[0] == "mb-trainer" else [part]
    for check in ["build", "lint", "integration_environment", "integration(architecture)", *needed]:
        session.run(*DEV, "nox", "--sessions", check, external=True)
    if planned.files:
        session.run(
            "git", "commit", "--all", "--quiet", "--message", f"{planned.tag}: release", external=True
        )
    session.run("git", "tag", planned.tag, external=True)
    session.log("tagged %s; its wheel is in %s", planned.tag, DIST)


@nox.session(python=TRAINER_PYTHON, requires=["build"])
def guard_versions(session: nox.Session) -> None:
    """Compare the bounds of mb-guard's records with releases of Megatron Core; further versions after --."""
    session.install(*alone("mb-guard", []))
    folders = {
        version: Path(session.create_tmp(), version) for version in [*GUARDED_VERSIONS, *session.posargs]
    }
    for version, folder in folders.items():
        requirement_of_version = f"megatron-core=={version}"
        session.install(WITHOUT_CONSTRAINTS, "--no-deps", "--target", str(folder), requirement_of_version)
    pairs = [f"{version}={folder}" for version, folder in folders.items()]
    session.run("python", "packages/mb-guard/tests/check_versions.py", *pairs)


@nox.session(venv_backend="none")
def dependencies(session: nox.Session) -> None:
    """Print each declared dependency with its bounds, and which sessions test them."""
    session.run(*DEV, "python", "tests/dependency_bounds.py", external=True)


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Lint, and the fast tests of the light packages and of the architecture, in the workspace's environment."""
    session.notify("lint")
    tests = [*(f"packages/{package}/tests" for package in LIGHT), "tests/architecture"]
    # some tests are parametrized by sets, whose order all processes must share
    environment = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    session.run(
        *DEV,
        "pytest",
        *IN_PARALLEL,
        "-m",
        "not slow and not matrix",
        *tests,
        env=environment,
        external=True,
    )


@nox.session(venv_backend="none")
@nox.parametrize("package", PACKAGES)
def bench(session: nox.Session, package: str) -> None:
    """Run the benchmarks of a package and print their tables."""
    for script in sorted((ROOT / "packages" / package).glob("benchmarks/bench_*.py")):
        session.run(*DEV, "python", str(script), external=True)


@nox.session(venv_backend="none")
def verify(session: nox.Session) -> None:
    """Prove for a table of layouts, some under load, that a resume is exact; words after -- choose rows."""
    script = [*DEV, "python", "tests/verify_resume.py"]
    session.run(*script, *session.posargs, env={"OMP_NUM_THREADS": "1"}, external=True)


@nox.session(venv_backend="none")
def pages(session: nox.Session) -> None:
    """Run the pages of the documentation word for word, about an hour; names of pages after -- choose some."""
    session.run(*DEV, "python", "tests/run_pages.py", *session.posargs, external=True)


@nox.session(venv_backend="none")
def drill(session: nox.Session) -> None:
    """Inject faults into a small run on two ranks for an hour; the moments are other ones each time."""
    run = [
        "mb",
        "drill",
        "gpt_tiny",
        "--nproc=2",
        "--steps=24",
        "--save-every=4",
        f"--seed={int(time.time())}",
    ]
    layout = "model.tensor_model_parallel_size=2"
    options = session.posargs or ["--minutes=60"]
    session.run(*DEV, *run, layout, *options, env={"OMP_NUM_THREADS": "1"}, external=True)


@nox.session(venv_backend="none")
def matrix(session: nox.Session) -> None:
    """Run the further rows of the tables of layouts and other cases, which the default checks leave out."""
    for folder in ("tests", "meta/tests", *(f"packages/{package}/tests" for package in PACKAGES)):
        command = [*DEV, "pytest", "-m", "matrix", folder, *session.posargs]
        session.run(*command, env={"OMP_NUM_THREADS": "1"}, external=True, success_codes=[0, NO_TESTS])


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Make trouble at every file operation of a save and a load, where the tests take a part; about an hour."""
    tests = "packages/mb-checkpoint/tests/test_faults.py"
    every = {"OMP_NUM_THREADS": "1", "MB_ALL_FAULTS": "1"}
    session.run(*DEV, "pytest", tests, *session.posargs, env=every, external=True)


@nox.session(venv_backend="none")
def mutations(session: nox.Session) -> None:
    """Damage every file of a run folder, and read it with each command: thousands of times, other ones each time."""
    tests = "tests/end_to_end/test_damaged_run_folders.py"
    many = {"OMP_NUM_THREADS": "1", "MB_MUTATIONS": "500", "MB_SEED": str(int(time.time()))}
    session.run("uv", "run", "pytest", tests, *session.posargs, env=many, external=True)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run the checks that need a CUDA device; elsewhere they are skipped with the reason."""
    tests = ["tests/gpu", "packages/mb-metrics/tests"]
    session.run(*DEV, "pytest", "-m", "gpu", *tests, *session.posargs, external=True)
