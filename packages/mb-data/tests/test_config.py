import copy
import json
from dataclasses import dataclass, replace

import pytest

from mb_data import (
    ConfigError,
    DataloaderConfig,
    DatasetBuildContext,
    DatasetProvider,
    GPTDatasetConfig,
    MockGPTDatasetConfig,
    TextCorpusConfig,
)

CHOSEN = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}


def test_no_workers_means_no_persistent_workers():
    config = DataloaderConfig(num_workers=0)
    config.finalize()
    assert config == DataloaderConfig(num_workers=0, persistent_workers=False)


@pytest.mark.parametrize("data_path", ["30 a 70 b", ["30", "a", "70", "b"]])
def test_data_path_becomes_a_blend(data_path):
    config = GPTDatasetConfig(seq_length=8, data_path=data_path, split="99,1,0", **CHOSEN)
    config.finalize()
    assert config.blend == (["a", "b"], [30.0, 70.0])
    assert (config.mock, config.split_matrix) == (False, [(0.0, 0.99), (0.99, 1.0), None])


def test_blend_takes_precedence_over_data_path():
    config = GPTDatasetConfig(seq_length=8, data_path="a", blend=(["b"], None), split="1", **CHOSEN)
    config.finalize()
    assert config.blend == (["b"], None)


def test_without_data_it_is_generated():
    config = GPTDatasetConfig(seq_length=8, **CHOSEN)
    config.finalize()
    assert (config.mock, config.sequence_length) == (True, 8)


@pytest.mark.parametrize(
    "config",
    [
        GPTDatasetConfig(seq_length=8, data_path="a", split="1", num_workers=0, **CHOSEN),
        MockGPTDatasetConfig(seq_length=8, **CHOSEN),
        TextCorpusConfig(seq_length=8),
    ],
    ids=lambda config: type(config).__name__,
)
def test_finalize_again_changes_nothing(config):
    config.finalize()
    once = copy.deepcopy(config)
    config.finalize()
    assert config == once


@pytest.mark.parametrize("section", [GPTDatasetConfig, MockGPTDatasetConfig, TextCorpusConfig])
def test_the_length_has_two_names_and_is_the_first_argument(section):
    length = section(seq_length=8)
    assert section(8) == section(sequence_length=8) == length
    assert (length.seq_length, length.sequence_length) == (8, 8)
    assert replace(section(sequence_length=8, num_workers=0), seq_length=16) == section(16, num_workers=0)


@pytest.mark.parametrize(
    ("positional", "named", "wrong"),
    [
        ((), {}, "seq_length"),
        ((8,), {"sequence_length": 8}, "both given"),
        ((), {"seq_length": 8, "sequence_length": 16}, "both given"),
    ],
)
def test_exactly_one_length_is_required(positional, named, wrong):
    with pytest.raises(TypeError, match=wrong):
        GPTDatasetConfig(*positional, **named)


def test_the_constructor_checks_nothing_and_finalize_reports_every_problem():
    config = GPTDatasetConfig(seq_length=0, blend=(["a", "b"], [1.0]), eod_mask_loss=False)
    with pytest.raises(ConfigError) as caught:
        config.finalize()
    assert {problem.id for problem in caught.value.problems} == {"V044d", "V044e", "V045", "D03"}


@pytest.mark.parametrize(
    "data", [{"blend": (["a"], None)}, {"blend_per_split": [(["a"], None)] * 3}, {"data_path": "a"}]
)
def test_generated_data_rejects_paths(data):
    with pytest.raises(TypeError, match="generated data takes no data path"):
        MockGPTDatasetConfig(seq_length=8, **CHOSEN, **data).finalize()


def test_a_text_corpus_rejects_paths():
    with pytest.raises(ConfigError, match="D04"):
        TextCorpusConfig(seq_length=8, blend=(["a"], None), split="1").finalize()


def test_known_counts_are_read_from_a_file(tmp_path):
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"a": [10, 11]}))
    config = GPTDatasetConfig(
        seq_length=8, data_path="a", split="1", per_dataset_sequences_path=str(counts), **CHOSEN
    )
    config.finalize()
    assert config.sequences_per_dataset == {"a": [10, 11]}


@dataclass(kw_only=True)
class SquaresProvider(DatasetProvider):
    """Custom section: the fields of the loader, and one additional field."""

    limit: int = 3

    def build_datasets(self, context):
        return [number**2 for number in range(self.limit)][: context.train_samples], None, None


def test_a_custom_provider_supplies_the_splits():
    provider = SquaresProvider(num_workers=0)
    provider.finalize()
    context = DatasetBuildContext(train_samples=2, valid_samples=0, test_samples=0)
    assert provider.build_datasets(context) == ([0, 1], None, None)
    assert provider.persistent_workers is False


def test_a_provider_must_build():
    with pytest.raises(TypeError, match="build_datasets"):
        DatasetProvider()
