"""Functions that the ranks of `test_ranks` run."""

from pathlib import Path

import torch

from mb_data import (
    ByteTokenizer,
    DatasetBuildContext,
    FinetuningDatasetConfig,
    GPTDatasetConfig,
    PackedSequenceSpecs,
    SentinelTokenizer,
    T5DatasetConfig,
    TextCorpusConfig,
    build_data_iterator,
    build_gpt_datasets,
)

MICRO = 2
SAMPLES = 16


def read_corpus(sources, cache_dir):
    """Read one epoch on both ranks. Return the micro-batches of this rank."""
    config, train = _train(sources, cache_dir, reads_data=True)
    return _batches(config, train, rank=torch.distributed.get_rank(), ranks=2)


def read_corpus_on_rank_zero(sources, cache_dir):
    """Read one epoch on rank 0 only. Return its samples, and None on rank 1."""
    config, train = _train(sources, cache_dir, reads_data=torch.distributed.get_rank() == 0)
    if train is None:
        return None
    return [row for batch in _batches(config, train, rank=0, ranks=1) for row in batch]


def read_blend(prefixes):
    """Build a blend twice, the second time from its record. Return the class names and the samples of both."""
    found = []
    for _ in range(2):
        blend = _blend(prefixes, reads_data=True)
        found.append((type(blend).__name__, [blend[index]["tokens"].tolist() for index in range(SAMPLES)]))
    unread = _blend(prefixes, reads_data=torch.distributed.get_rank() == 0)
    return found, unread is None


def _blend(prefixes, *, reads_data):
    config = GPTDatasetConfig(
        seq_length=8,
        data_path=prefixes,
        split="1",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    context = DatasetBuildContext(
        train_samples=SAMPLES,
        valid_samples=0,
        test_samples=0,
        tokenizer=ByteTokenizer(),
        reads_data=reads_data,
    )
    return build_gpt_datasets(config, context)[0]


def _train(sources, cache_dir, *, reads_data):
    config = TextCorpusConfig(
        seq_length=8,
        sources=[sources],
        vocab_size=280,
        cache_dir=cache_dir,
        validation_fraction=0.2,
        test_fraction=0.2,
        num_workers=0,
    )
    context = DatasetBuildContext(
        train_samples=SAMPLES, valid_samples=2, test_samples=2, reads_data=reads_data
    )
    return config, build_gpt_datasets(config, context)[0]


def _batches(config, train, *, rank, ranks):
    iterator = build_data_iterator(
        train,
        config=config,
        consumed_samples=0,
        micro_batch_size=MICRO,
        data_parallel_rank=rank,
        data_parallel_size=ranks,
    )
    steps = SAMPLES // (MICRO * ranks)
    return [next(iterator)["tokens"].tolist() for _ in range(steps)]


def read_with_own_files(kind, folders):
    """Build a dataset from a folder and a cache of this rank alone. Return its samples, and the files of its cache."""
    folder = Path(folders[torch.distributed.get_rank()])
    chosen = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    pairs = [str(folder / name) for name in "ab"]
    caches = {"cache_dir": str(folder / "cache")}
    sections = {
        "pair": lambda: GPTDatasetConfig(seq_length=8, data_path=pairs[0], split="90,10,0", **chosen),
        "blend": lambda: GPTDatasetConfig(seq_length=8, blend=(pairs, [1.0, 2.0]), split="90,10,0", **chosen),
        "corpus": lambda: TextCorpusConfig(
            seq_length=8, sources=[str(folder / "text")], vocab_size=280, **caches, **chosen
        ),
        "t5": lambda: T5DatasetConfig(seq_length=32, data_path=pairs[0], split="90,10,0"),
        "finetuning": lambda: FinetuningDatasetConfig(seq_length=32, dataset_root=str(folder), **caches),
        "packs": lambda: FinetuningDatasetConfig(
            seq_length=32,
            dataset_root=str(folder),
            packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size=32),
            **caches,
        ),
    }
    tokenizer = SentinelTokenizer(ByteTokenizer(), sentinels=20) if kind == "t5" else ByteTokenizer()
    context = DatasetBuildContext(
        train_samples=SAMPLES,
        valid_samples=0,
        test_samples=0,
        tokenizer=None if kind == "corpus" else tokenizer,
    )
    train = sections[kind]().build_datasets(context)[0]
    samples = [{name: each.tolist() for name, each in train[index].items()} for index in range(SAMPLES)]
    return samples, sorted(path.suffix for path in folder.rglob("*.npy"))


def digest_of_files(prefixes):
    """Return the digest of data files, and how often this rank computed one."""
    from mb_data import mcore
    from mb_data.megatron.fingerprint import pair_states

    computed, compute = [], mcore.content_digest
    mcore.content_digest = lambda *args: computed.append(args) or compute(*args)
    try:
        content = mcore.content_on_all_ranks(prefixes, pair_states(prefixes), reads_data=True)
    finally:
        mcore.content_digest = compute
    return content, len(computed)
