"""Recipes, classes and rules that users add."""

import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest

from mb_config import ConfigReadError
from mb_config.overrides.registration import (
    ClassTable,
    Recipe,
    RecipeTable,
    RegistrationError,
    Registry,
    as_recipe,
)
from mb_config.overrides.request import RecipeReader

MODULE = '''
"""A user's recipes."""

from dataclasses import dataclass

from mb_config import Rule, TrainingConfig

@dataclass
class MyTraining(TrainingConfig):
    """Training with one more option."""

    bonus: int = 1

def mine():
    """Build my configuration.

    Further explanations.
    """
    return "my configuration"

RECIPES = {"mine": mine}
RULES = ["my rule"]
'''


@pytest.fixture
def registry():
    """Return the registry of a program with one recipe."""
    return Registry(recipes=RecipeTable({"tiny": Recipe(build=dict, summary="the smallest")}))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a module into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)

    def module(name, text=MODULE):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return tmp_path / f"{name}.py"

    yield module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(folder, monkeypatch, entry_points):
    """Install a distribution with entry points."""
    info = folder / "user_project-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: user-project\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    monkeypatch.syspath_prepend(str(folder))


def test_an_imported_module_adds_recipes_rules_and_classes(registry, write):
    write("my_recipes")
    for _ in range(2):
        registry.import_module("my_recipes")
    assert list(registry.recipes) == ["tiny", "mine"]
    assert registry.recipes["mine"].summary == "Build my configuration."
    assert registry.recipes["mine"].build() == "my configuration"
    assert dict(registry.classes) == {"my_recipes.MyTraining": sys.modules["my_recipes"].MyTraining}
    assert registry.rules_by_package == {"my_recipes": ("my rule",)}
    assert registry.imported == ["my_recipes"]


def test_a_recipe_of_a_name_in_use_names_both_sources(registry, write):
    write("my_recipes", MODULE.replace('"mine": mine', '"tiny": mine'))
    with pytest.raises(RegistrationError, match="my_recipes: recipe tiny is already defined by this program"):
        registry.import_module("my_recipes")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("1 / 0", r"division by zero in .*bad.py:1\)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_error_with_the_line(registry, write, text, reason):
    write("bad", text)
    with pytest.raises(RegistrationError, match=rf"--import bad: cannot be imported \(.*{reason}"):
        registry.import_module("bad")


def test_what_is_no_recipe_is_named():
    with pytest.raises(RegistrationError, match=r"x: 3 is not a recipe\. Give a function"):
        as_recipe(3, source="x")


def test_a_file_gives_the_recipe_that_is_named_or_its_only_one(registry, write):
    path = write("mine_file")
    for text in (f"{path}:mine", str(path)):
        name, recipe = registry.recipe_of_file(text)
        assert (name, recipe.build()) == ("mine_file", "my configuration")
    assert "mine" not in registry.recipes
    assert "mine_file.MyTraining" in registry.classes
    with pytest.raises(RegistrationError, match=r"has no absent\. It has .*mine"):
        registry.recipe_of_file(f"{path}:absent")
    without = write("without_functions", "X = 1\n")
    with pytest.raises(RegistrationError, match=r"has no build\. It defines no function\."):
        registry.recipe_of_file(f"{without}:build")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("none_there", None, "no such file"),
        ("json", "", "a module named json is imported already"),
        (
            "failing",
            "raise ValueError('at work')",
            r"cannot be run \(ValueError: at work in .*failing.py:1\)",
        ),
        ("unnamed", "def one(): ...", "RECIPES names none. Name one function"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_error(registry, write, tmp_path, name, text, reason):
    if text is not None:
        write(name, text)
    with pytest.raises(RegistrationError, match=rf"{name}.py: {reason}"):
        registry.recipe_of_file(str(tmp_path / f"{name}.py"))


def test_entry_points_are_loaded_when_they_are_used(write, tmp_path, monkeypatch):
    write("installed_recipes")
    install(
        tmp_path,
        monkeypatch,
        """
        [test.recipes]
        installed = installed_recipes:mine
        broken = no_such_module:build
        [test.classes]
        training = installed_recipes:MyTraining
        """,
    )
    recipes = RecipeTable({"tiny": Recipe(build=dict)}, group="test.recipes")
    assert recipes["tiny"].build() == {}
    assert "installed_recipes" not in sys.modules
    assert (sorted(recipes), len(recipes)) == (["broken", "installed", "tiny"], 3)
    assert recipes["installed"].build() == "my configuration"
    with pytest.raises(
        RegistrationError, match="broken = no_such_module:build of user-project: cannot be loaded"
    ):
        recipes["broken"]
    assert list(ClassTable(["test.classes"])) == ["installed_recipes.MyTraining"]


def test_a_class_that_cannot_be_loaded_is_a_warning(write, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "[test.classes]\nbroken = no_such_module:Section\n")
    with pytest.warns(UserWarning, match="no_such_module.* Its class is not known"):
        assert len(ClassTable(["test.classes"])) == 0


@pytest.fixture
def reader(make, registry):
    """Return a reader of one recipe, which is the default, and of Python files."""
    registry.recipes.add("small", Recipe(build=make), source="test")
    return RecipeReader(
        container=type(make()),
        recipes=registry.recipes,
        default="small",
        recipe_of_file=registry.recipe_of_file,
    )


def test_a_file_over_the_default_recipe_is_a_run_of_its_name(reader, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("optimizer: {lr: 0.5}\n")
    request = reader.read([], files=[file])
    assert (request.name, request.base, request.config.optimizer.lr) == ("mine", "small", 0.5)
    named = reader.read(["small"], files=[file])
    assert (named.name, named.base) == ("small", None)


def test_the_base_of_a_file_is_the_recipe_below_it(reader, tmp_path, registry, make):
    registry.recipes.add("other", Recipe(build=make), source="test")
    file, above = tmp_path / "mine.yaml", tmp_path / "above.yaml"
    file.write_text("base: other\noptimizer: {lr: 0.5}\n")
    above.write_text("base: mine.yaml\ntrain: {micro_batch_size: 4}\n")
    for request in (reader.read([], files=[file]), reader.read([str(file)])):
        assert (request.name, request.base, request.config.optimizer.lr) == ("mine", "other", 0.5)
        assert request.provenance.origin("optimizer.lr") == f"{file}:2"
    request = reader.read([str(above)])
    assert (request.name, request.base) == ("above", str(file))
    assert (request.config.optimizer.lr, request.config.train.micro_batch_size) == (0.5, 4)


def test_two_recipes_are_an_error_that_names_both_origins(reader, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("base: other\n")
    with pytest.raises(
        ConfigReadError, match=r"small \(the command line\), other \(.*mine.yaml\)\. Keep one"
    ):
        reader.read(["small"], files=[file])
    file.write_text("base: 3\n")
    with pytest.raises(ConfigReadError, match=r"mine.yaml:1: base: expected the name of a recipe"):
        reader.read([], files=[file])


def test_a_recipe_in_a_python_file_is_read_with_overrides(reader, write, monkeypatch, make):
    monkeypatch.setattr("builtins.make_configuration", make, raising=False)
    write("my_run", "def build():\n    return make_configuration()\n")
    request = reader.read(["my_run.py:build", "optimizer.lr=0.25"])
    assert (request.name, request.config.optimizer.lr, request.base) == ("my_run", 0.25, None)
    assert request.provenance.origin("train.train_iters") == "my_run.py:build"


def test_the_packages_of_modules_files_and_entry_points_are_accepted(registry, write):
    assert not registry.accepts("my_recipes.storage.Manager")
    write("my_recipes")
    registry.import_module("my_recipes")
    assert registry.accepts("my_recipes.storage.Manager")
    assert not registry.accepts("my_recipes_too.Manager")
    registry.recipe_of_file(str(write("mine_file")))
    assert registry.accepts("mine_file.Manager")
    point = EntryPoint(name="x", value="their.recipes:build", group="g")
    recipes, classes = RecipeTable({}), ClassTable()
    recipes._installed = {"x": point}
    assert Registry(recipes=recipes, classes=classes).accepts("their.storage.Manager")
    assert Registry(recipes=recipes, classes=classes, accepted={"host"}).accepts("host.Manager")
