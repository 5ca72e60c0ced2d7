"""Data of a run: iterators at exact positions, for each pipeline stage, model chunk and kind of section."""

import multiprocessing
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mb_data import (
    BatchSettings,
    ByteTokenizer,
    DataRanks,
    DatasetBuildContext,
    DatasetProvider,
    DrawnShapesConfig,
    PackedSequenceSpecs,
    SampleSizes,
    SumsFinetuningConfig,
    ValidationBatches,
    ValidationSetOptions,
    build_run_datasets,
)

CONTEXT = DatasetBuildContext(train_samples=24, valid_samples=8, test_samples=4, tokenizer=ByteTokenizer())
SIZES = BatchSettings(micro_batch_size=2, global_batch_size=4, eval_iters=2)


@dataclass(kw_only=True)
class Numbers(DatasetProvider):
    """Section whose samples are their own indices."""

    num_workers: int = 0
    several: bool = False

    def build_datasets(self, context):
        train, valid, test = (
            [torch.tensor(number) for number in range(size)] or None
            for size in (context.train_samples, context.valid_samples, context.test_samples)
        )
        return train, [valid, valid[:4]] if self.several and valid else valid, test


def numbers(iterator, batches=None):
    return [batch.tolist() for batch in islice(iterator, batches)]


def test_iterators_start_at_the_consumed_samples():
    datasets = build_run_datasets(Numbers(), CONTEXT)
    ranks = DataRanks(data_parallel_rank=1, data_parallel_size=2)
    data = datasets.loaders(SIZES, ranks=ranks).iterators(consumed_train_samples=16, consumed_valid_samples=4)
    assert (data.has_valid, data.has_test, data.sizes) == (True, True, None)
    assert [numbers(data.train), numbers(data.valid, 3), numbers(data.test)] == [
        [[18, 19], [22, 23]],
        [[6, 7], [2, 3], [6, 7]],  # a stream of validation has no end
        [[2, 3]],
    ]


def test_close_stops_the_workers_of_all_iterators():
    others = {*multiprocessing.active_children()}  # of other tests of this process
    data = build_run_datasets(Numbers(num_workers=1), CONTEXT).loaders(SIZES).iterators()
    assert next(data.train).tolist() == [0, 1]
    workers = {*multiprocessing.active_children()} - others
    assert len(workers) == 3
    data.close()
    assert workers.isdisjoint(multiprocessing.active_children())


def test_evaluation_has_its_own_batch_sizes():
    datasets = build_run_datasets(Numbers(), CONTEXT)
    data = datasets.loaders(BatchSettings(micro_batch_size=2, eval_micro_batch_size=4)).iterators()
    assert numbers(data.valid, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_stages_between_the_first_and_the_last_read_nothing():
    datasets = build_run_datasets(Numbers(), CONTEXT)
    stages = [DataRanks(pipeline_rank=stage, pipeline_size=3) for stage in range(3)]
    reads = [datasets.loaders(SIZES, ranks=stage).iterators().train is not None for stage in stages]
    assert reads == [True, False, True]


def test_every_stage_of_a_model_with_experts_reads_padding():
    class Padded(Numbers):
        is_padded = True

    datasets = build_run_datasets(Padded(), CONTEXT)
    middle = DataRanks(pipeline_rank=1, pipeline_size=3)
    reads = [
        datasets.loaders(BatchSettings(micro_batch_size=2, routed=routed), ranks=middle).iterators().train
        for routed in (True, False)
    ]
    assert [each is not None for each in reads] == [True, False]


def test_each_model_chunk_has_an_iterator():
    datasets = build_run_datasets(Numbers(), CONTEXT)
    first, second = datasets.loaders(BatchSettings(micro_batch_size=2, model_chunks=2)).iterators().train
    assert numbers(first) == numbers(second) == [[number, number + 1] for number in range(0, 24, 2)]


def test_global_batches_are_rounded_down_to_microbatches_of_all_ranks():
    section = Numbers(dataloader_type="batch")
    settings = BatchSettings(micro_batch_size=2, global_batch_size=7, round_down=True)
    ranks = DataRanks(data_parallel_rank=0, data_parallel_size=3)
    context = DatasetBuildContext(train_samples=24, valid_samples=0, test_samples=0)
    loaders = build_run_datasets(section, context).loaders(settings, ranks=ranks)
    data = loaders.iterators(consumed_train_samples=6)
    assert len(numbers(data.train)) == 3


def test_absent_splits_have_no_iterator():
    context = DatasetBuildContext(train_samples=4, valid_samples=0, test_samples=0)
    data = build_run_datasets(Numbers(), context).loaders(SIZES).iterators()
    assert (data.valid, data.test, data.has_valid, data.has_test) == (None, None, False, False)


def test_data_of_other_ranks_counts():
    context = DatasetBuildContext(train_samples=4, valid_samples=0, test_samples=0)
    datasets = build_run_datasets(Numbers(), context)
    data = datasets.loaders(SIZES, gather=lambda mine: [mine, (True, False)]).iterators()
    assert (data.valid, data.has_valid, data.has_test) == (None, True, False)


def test_complete_validation_sets_start_again():
    datasets = build_run_datasets(
        Numbers(several=True),
        CONTEXT,
        validation=ValidationSetOptions(complete=True, several=True, names=["a", "b"]),
    )
    data = datasets.loaders(SIZES).iterators(consumed_valid_samples=12)
    assert [(each.name, each.batches) for each in data.valid] == [("a", 2), ("b", 1)]
    for _ in range(2):
        assert [numbers(each.data()) for each in data.valid] == [
            [[0, 1], [2, 3], [4, 5], [6, 7]],
            [[0, 1], [2, 3]],
        ]
    (test,) = data.test
    assert (type(test), test.batches, numbers(test.data()), numbers(test.data())) == (
        *(ValidationBatches, 2, [[0, 1], [2, 3]]),
        [],
    )


def test_streams_of_several_sets_continue():
    datasets = build_run_datasets(
        Numbers(several=True), CONTEXT, validation=ValidationSetOptions(several=True)
    )
    data = datasets.loaders(SIZES).iterators(consumed_valid_samples=4)
    assert [(each.name, each.batches) for each in data.valid] == [("0", 2), ("1", 2)]
    first = data.valid[0]
    assert next(first.data()).tolist() == [2, 3]
    assert next(first.data()).tolist() == [4, 5]


@dataclass(kw_only=True)
class External(DatasetProvider):
    """Section of finished batches."""

    dataloader_type: Any = "external"

    def build_datasets(self, context):
        return range(context.train_samples), None, None


def test_the_iterator_of_an_external_loader_is_built_before_its_position_is_known():
    datasets = build_run_datasets(External(), CONTEXT)
    loaders = datasets.loaders(SIZES)
    assert list(islice(loaders.external, 3)) == [0, 1, 2]
    assert next(loaders.iterators(consumed_train_samples=99).train) == 3
    assert build_run_datasets(Numbers(), CONTEXT).loaders(SIZES).external is None


def test_samples_of_different_lengths_have_average_sizes(tmp_path):
    section = SumsFinetuningConfig(64, cache_dir=str(tmp_path), num_workers=0, largest=5)
    middle = DataRanks(pipeline_rank=1, pipeline_size=3)
    data = build_run_datasets(section, CONTEXT).loaders(SIZES, ranks=middle).iterators()
    assert data.train is None
    assert isinstance(data.sizes, SampleSizes)
    counts = data.sizes.length_counts
    assert sum(length * number for length, number in counts.items()) == pytest.approx(data.sizes.tokens)
    assert sum(counts.values()) == pytest.approx(1.0)
    assert 0 < min(counts) <= max(counts) < 64
    section.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=64)
    packs = build_run_datasets(section, CONTEXT)
    packed = packs.loaders(BatchSettings(global_batch_size=4), ranks=middle).iterators()
    assert packed.sizes.tokens > data.sizes.tokens
    assert "cu_seqlens" in next(packed.train)  # every stage reads the boundaries


def test_a_section_builds_itself():
    context = DatasetBuildContext(train_samples=2, valid_samples=0, test_samples=1, tokenizer=ByteTokenizer())
    train, valid, test = DrawnShapesConfig(seq_length=80).build_datasets(context)
    assert (len(train), valid, len(test)) == (2, None, 1)


class Group:
    """Process group of this rank and size."""

    def __init__(self, rank, size):
        self._place = rank, size

    def rank(self):
        return self._place[0]

    def size(self):
        return self._place[1]


def test_ranks_of_process_groups():
    @dataclass
    class Groups:
        dp: Group
        pp: Group

    assert DataRanks.of(Groups(dp=Group(1, 4), pp=Group(2, 3))) == DataRanks(
        data_parallel_rank=1, data_parallel_size=4, pipeline_rank=2, pipeline_size=3
    )


@pytest.mark.parametrize(("stage", "reads"), [(0, True), (1, False), (2, True)])
def test_ranks_that_read(stage, reads):
    assert DataRanks(pipeline_rank=stage, pipeline_size=3).reads_data is reads


def test_a_resume_reads_from_the_counters_and_sets_the_evaluations():
    counters = SimpleNamespace(
        consumed_train_samples=16, consumed_valid_samples=4, do_valid=False, do_test=True
    )
    loaders = build_run_datasets(Numbers(), CONTEXT).loaders(SIZES, gather=lambda mine: [mine, (True, False)])
    data = loaders.resume(counters)
    assert (counters.do_valid, counters.do_test) == (data.has_valid, data.has_test) == (True, True)
    assert next(data.train).tolist()[0] == 16
