"""Samples of one step of a run, and the documents that they come from."""

import json
import math
from itertools import islice

import pytest

pytest.importorskip("yaml", reason="needs mb-data[cli]")
pytest.importorskip("torch")
pytest.importorskip("megatron.core", reason="needs mb-data[mcore]")

import yaml

from mb_data import (
    BatchIterators,
    BatchSettings,
    ByteTokenizer,
    DataloaderConfig,
    DataRanks,
    GPTDatasetConfig,
    IndexedReader,
    RunDatasets,
    SampleCounts,
    TokenizerConfig,
)
from mb_data.errors import UnknownStepError
from mb_data.loading.step_batch import StepSequence, batch_settings_of, find_step, step_sequences
from mb_data.megatron.sample_indices import IndexRequest

TOKENIZER = ByteTokenizer()


def write_run(folder, *, rows, train=None, model=None):
    """Write what a run folder has: settings and metrics."""
    settings = {"train": train or {"micro_batch_size": 2, "global_batch_size": 4}, "model": model or {}}
    folder.mkdir(exist_ok=True)
    (folder / "run_config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def row(step, consumed, samples, **values):
    return {"step": step, "samples vs steps": consumed, "batch-size": samples, "lm loss": 2.0, **values}


def request(paths, **fields):
    masks = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    section = GPTDatasetConfig(
        seq_length=32, data_path=paths, split="100,0,0", num_workers=0, random_seed=1, **masks, **fields
    )
    counts = SampleCounts(train=40, valid=0, test=0)
    return IndexRequest(name="test", section=section, tokenizer=TokenizerConfig(), counts=counts)


@pytest.fixture
def run(tmp_path):
    rows = [row(1, 4, 4), row(2, 8, 4, **{"world-size": 2}), row(3, 14, 6)]
    return write_run(tmp_path / "run", rows=rows)


def test_a_step_has_the_position_of_its_metrics(run):
    found = find_step(run, 2)
    assert (found.consumed, found.samples, found.replicas, found.metrics) == (4, 4, 2, {"lm loss": 2.0})
    assert (find_step(run, 3).consumed, find_step(run, 3).samples) == (8, 6)  # after a ramp-up


def test_a_loss_that_is_not_finite_is_among_the_metrics(tmp_path):
    values = {"lm loss": "NaN", "grad-norm": "Infinity", "z loss": "none"}
    found = find_step(write_run(tmp_path, rows=[row(1, 4, 4, **values)]), 1)
    assert found.metrics == pytest.approx({"lm loss": math.nan, "grad-norm": math.inf}, nan_ok=True)


def test_the_replicas_are_those_of_the_start_before_the_step(run):
    starts = [{"event": "start", "step": 0, "world_size": 4}, {"event": "resume", "step": 2, "world_size": 8}]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in starts))
    assert [find_step(run, step).replicas for step in (2, 3)] == [4, 8]


def test_lines_that_a_killed_run_did_not_complete_are_left_out(run):
    for name, line in (("metrics.jsonl", '{"step": 4, "sam'), ("events.jsonl", '{"event": "st')):
        with (run / name).open("a") as file:
            file.write(line)
    assert find_step(run, 3).consumed == 8


def test_a_step_without_a_number_of_processes_has_that_of_the_next_row(run):
    assert [find_step(run, step).replicas for step in (1, 3)] == [2, 2]


def test_a_step_that_was_made_again_has_its_last_position(tmp_path):
    folder = write_run(tmp_path / "run", rows=[row(1, 4, 4), row(2, 8, 4), row(2, 12, 8)])
    assert (find_step(folder, 2).consumed, find_step(folder, 2).samples) == (4, 8)


def test_a_step_that_the_run_has_not_made_is_an_error(run):
    with pytest.raises(UnknownStepError, match="the run ended at step 3"):
        find_step(run, 9)


def test_ranks_of_one_replica_share_its_data(tmp_path):
    rows = [row(1, 4, 4, **{"world-size": 8})]
    folder = write_run(tmp_path / "run", rows=rows, model={"tensor_model_parallel_size": 2})
    assert find_step(folder, 1).replicas == 4


def sequences(run, paths, step, *, rank=None, **fields):
    datasets = request(paths, **fields).build(TOKENIZER)
    return datasets, list(step_sequences(datasets, batch_settings_of(run), find_step(run, step), rank=rank))


def test_the_documents_of_a_sequence_contain_its_tokens(run, write_pair):
    first, second = write_pair("a", documents=60), write_pair("b", documents=60, first=100)
    _, found = sequences(run, ["30", first, "70", second], 2)
    assert {part.source for sequence in found for part in sequence.parts} == {first, second}
    for sequence in found:
        read = [
            int(token)
            for part in sequence.parts
            for token in IndexedReader(part.source).document(part.document)[
                part.offset : part.offset + part.tokens
            ]
        ]
        assert read[: len(sequence.tokens)] == list(sequence.tokens)


def test_the_sequences_of_the_ranks_are_those_of_the_step(run, prefix):
    _, every = sequences(run, [prefix], 2)
    parts = [sequences(run, [prefix], 2, rank=rank)[1] for rank in range(2)]
    assert [len(part) for part in parts] == [2, 2]
    assert {s.index for part in parts for s in part} == {s.index for s in every} == {4, 5, 6, 7}


def test_a_cyclic_order_is_that_of_the_seed(run, prefix):
    _, found = sequences(run, [prefix], 2, dataloader_type="cyclic")
    assert len({sequence.index for sequence in found}) == 4
    assert [sequence.index for sequence in found] != [4, 5, 6, 7]


class LengthsOfIndex:
    """Samples whose length sorts a global batch."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"tokens": [index] * self.length(index)}

    def length(self, index):
        return 1 + 7 * index % 5


@pytest.mark.parametrize("rank", [0, 1])
def test_the_batch_loader_has_the_batch_that_the_run_rounded_down(tmp_path, rank):
    train = {"micro_batch_size": 2, "global_batch_size": 10, "decrease_batch_size_if_needed": True}
    rows = [row(1, 8, 8, **{"world-size": 2}), row(2, 16, 8, **{"world-size": 2})]
    run = write_run(tmp_path / "run", rows=rows, train=train)
    section = DataloaderConfig(dataloader_type="batch", num_workers=0)
    settings = BatchSettings(micro_batch_size=2, global_batch_size=10, round_down=True)
    ranks = DataRanks(data_parallel_rank=rank, data_parallel_size=2)
    dataset = LengthsOfIndex()
    dataset.collate = lambda samples: [sample["tokens"][0] for sample in samples]
    batches = BatchIterators(section=section, settings=settings, ranks=ranks)
    trained = list(islice(batches.train(dataset, consumed_samples=8), 2))
    datasets = RunDatasets(section=section, train=dataset, valid=None, test=None)
    found = step_sequences(datasets, batch_settings_of(run), find_step(run, 2), rank=rank)
    assert [sequence.index for sequence in found] == [index for batch in trained for index in batch]


def test_a_rank_that_does_not_exist_is_an_error(run, prefix):
    with pytest.raises(UnknownStepError, match="rank 2: step 2 has 2 data-parallel ranks"):
        sequences(run, [prefix], 2, rank=2)


def test_an_external_loader_has_no_positions(run, prefix):
    datasets = request([prefix]).build(TOKENIZER)
    datasets.section.dataloader_type = "external"
    with pytest.raises(UnknownStepError, match="external loaders yield finished batches"):
        list(step_sequences(datasets, batch_settings_of(run), find_step(run, 2)))


def test_packed_samples_are_separate_texts():
    from mb_data.loading.step_batch import StepSequence

    packed = StepSequence(index=0, parts=(), tokens=tuple(b"abcdef"), starts=(0, 4))
    assert packed.texts(TOKENIZER) == ["abcd", "ef"]


def test_placeholders_of_an_image_have_no_text():
    sequence = StepSequence(index=3, parts=(), tokens=(-200, -200, *b"a box", 256, 999), starts=(0,))
    assert sequence.texts(TOKENIZER) == ["a box"]
