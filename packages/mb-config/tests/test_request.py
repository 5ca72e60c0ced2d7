"""Configurations of a command line: recipes, files, overlays and overrides."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, make_dataclass, replace

import pytest

from mb_config import ConfigReadError, TargetError, UnknownKeyError, from_dict
from mb_config.overrides.registration import Recipe
from mb_config.overrides.request import (
    RecipeReader,
    RecipeResultError,
    UnknownRecipeError,
    read_plain_request,
)


@pytest.fixture
def reader(make):
    """Return a reader of one recipe, which is the default."""
    return RecipeReader(
        container=type(make()),
        recipes={"tiny": Recipe(build=make)},
        default="tiny",
        list_command="trainer recipes",
    )


def test_files_override_the_recipe_and_arguments_override_files(reader, tmp_path):
    file = tmp_path / "more.yaml"
    file.write_text("train: {micro_batch_size: 4}\noptimizer: {lr: 0.5}\n")
    request = reader.read(["tiny", "optimizer.lr=0.25"], files=[file])
    assert (request.name, request.sections) == ("tiny", None)
    assert (request.config.train.micro_batch_size, request.config.optimizer.lr) == (4, 0.25)
    origins = [
        request.provenance.origin(path)
        for path in ("train.micro_batch_size", "optimizer.lr", "train.train_iters")
    ]
    assert origins == [f"{file}:1", "command line", "recipe tiny"]


def test_without_a_name_the_default_is_read(reader):
    assert reader.read(["optimizer.lr=0.25"]).name == "tiny"
    with pytest.raises(ConfigReadError, match="no file is given"):
        read_plain_request(["optimizer.lr=0.25"])


def test_an_unknown_name_has_the_nearest_recipe(reader):
    with pytest.raises(
        UnknownRecipeError, match=r"tinny: is neither a recipe .* Nearest: tiny; `trainer recipes` lists all"
    ):
        reader.read(["tinny"])
    with pytest.raises(
        UnknownRecipeError, match=r"xyz: is neither a recipe nor a YAML file\. `trainer recipes` lists all"
    ):
        reader.read(["xyz"])
    with pytest.raises(
        UnknownRecipeError, match=r"tinny: is neither a recipe nor a YAML file\. An override has"
    ):
        RecipeReader(container=reader.container).read(["tinny"])


def test_unreadable_settings_are_collected(reader, tmp_path):
    file = tmp_path / "run.yaml"
    reader.read([]).config.to_yaml(file)
    file.write_text(
        file.read_text().replace("log_interval: 10", "log_interval: ten").replace("num_layers:", "num_layer:")
    )
    unread = []
    request = reader.read([str(file), "optimizer.lrr=1"], unread=unread)
    assert sorted(error.path for error in unread) == [
        "logger.log_interval",
        "model.num_layer",
        "optimizer.lrr",
    ]
    assert (request.name, request.config.logger.log_interval) == ("run", 10)
    with pytest.raises(ConfigReadError, match="expected int, not 'ten'"):
        reader.read([str(file)])


def test_a_file_without_required_settings_is_not_read(reader, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("train: {train_iters: many}\n")
    with pytest.raises(ConfigReadError, match="is required"):
        reader.read([str(file)], unread=[])
    file.write_text("- 1\n")
    with pytest.raises(ConfigReadError, match="expected a mapping"):
        reader.read([str(file)], unread=[])


def test_a_plain_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {_target_: mb_models.config.GPTModelConfig, num_layers: 2}\ntrain: {train_iters: 1}\n"
    )
    request = read_plain_request([str(file), "train.train_iters=2"])
    assert (request.name, request.config.train.train_iters) == ("run", 2)
    assert {"train", "model"} <= {*request.sections}
    assert not {"optimizer", "dataset"} & {*request.sections}
    assert request.plain.unchecked() == {"model": "mb-models"}
    with pytest.raises(UnknownKeyError, match="no such field"):
        read_plain_request([str(file), "train.nothing=2"])


@pytest.fixture
def strict(reader):
    """A reader that lets files name loggers of the package `mine` only."""
    return replace(reader, imported_classes={"logger.name": lambda name: name.startswith("mine.")})


@pytest.mark.parametrize("how", ["overlay", "complete", "base"])
def test_a_file_names_only_classes_that_may_be_imported(strict, tmp_path, how):
    file = tmp_path / "run.yaml"
    if how == "complete":
        config = strict.read([]).config
        config.logger.name = "theirs.Logger"
        config.to_yaml(file)
    else:
        file.write_text(("base: tiny\n" if how == "base" else "") + "logger: {name: theirs.Logger}\n")
    arguments, files = ([], [file]) if how == "overlay" else ([str(file)], [])
    with pytest.raises(
        TargetError, match=r"run.yaml:\d+: logger.name: 'theirs.Logger' is not allowed in a file"
    ):
        strict.read(arguments, files=files)
    unread = []
    request = strict.read(arguments, files=files, unread=unread)
    assert ([error.path for error in unread], request.config.logger.name) == (["logger.name"], None)
    file.write_text(file.read_text().replace("theirs.Logger", "mine.Logger"))
    assert strict.read(arguments, files=files).config.logger.name == "mine.Logger"


def test_recipe_and_command_line_may_name_any_class(strict, make, tmp_path):
    def build():
        config = make()
        config.logger.name = "theirs.Logger"
        return config

    named = replace(strict, recipes={"tiny": Recipe(build=build)})
    file = tmp_path / "run.yaml"
    file.write_text("base: tiny\ntrain: {micro_batch_size: 4}\n")
    assert named.read([str(file)]).config.logger.name == "theirs.Logger"
    assert strict.read(["logger.name=theirs.Logger"]).config.logger.name == "theirs.Logger"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: None, "returns a configuration, and this one returned None. Does it lack a return?"),
        (lambda: {"train": {}}, "this one returned {'train': {}}. Return a ConfigContainer."),
        (lambda size: None, "has a parameter without a default (missing a required argument: 'size')"),
        (lambda *, size: None, "has a parameter without a default (missing a required"),
    ],
)
def test_a_function_that_builds_no_configuration_is_one_line(make, build, message):
    reader = RecipeReader(container=type(make()), recipes={"own": Recipe(build=build)})
    with pytest.raises(RecipeResultError) as caught:
        reader.read(["own"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_with_defaults_is_called_without_arguments(make):
    reader = RecipeReader(container=type(make()), recipes={"own": Recipe(build=lambda n=1: make())})
    assert reader.read(["own"]).name == "own"


@pytest.mark.parametrize("start", ["a", "itself"])
def test_files_that_are_the_base_of_each_other_are_an_error(reader, tmp_path, start):
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    (tmp_path / "itself.yaml").write_text("base: itself.yaml\n")
    for read in (reader.read, read_plain_request):
        with pytest.raises(ConfigReadError, match=r"base: .*\.yaml: a file is its own base"):
            read([str(tmp_path / f"{start}.yaml")])


def test_a_base_that_does_not_exist_is_named_with_its_line(reader, tmp_path):
    (tmp_path / "a.yaml").write_text("# mine\nbase: nowhere.yaml\n")
    with pytest.raises(ConfigReadError, match=r"a\.yaml:2: base: .*nowhere\.yaml: no such file"):
        reader.read([str(tmp_path / "a.yaml")])


def test_a_base_in_a_file_is_no_file_of_python(reader, tmp_path):
    (tmp_path / "a.yaml").write_text("base: mine.py:build\n")
    with pytest.raises(ConfigReadError, match=r"a\.yaml:1: base: .*is not allowed in a file.*command line"):
        reader.read([str(tmp_path / "a.yaml")])


def test_an_abstract_class_is_not_built():
    cls = make_dataclass("Config", [("dataset", AbstractData | None, None)])
    for data in ({"dataset": {}}, {"dataset": {"_target_": "AbstractData"}}):
        with pytest.raises(TargetError, match="dataset"):
            from_dict(cls, data)


@dataclass
class AbstractData(ABC):
    """Data that a subclass builds."""

    split: str = ""

    @abstractmethod
    def build(self):
        """Build the data."""
