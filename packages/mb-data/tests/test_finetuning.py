import json
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from time import sleep

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mb_data import (
    BatchPadding,
    BatchSampler,
    BatchSettings,
    ByteTokenizer,
    ConfigError,
    DatasetBuildContext,
    FinetuningDatasetConfig,
    NotEnoughSamplesError,
    PackedSequenceSpecs,
    SumsFinetuningConfig,
    TokenizerConfig,
    TokenizerError,
    ValidationSetOptions,
    build_data_iterator,
    build_finetuning_datasets,
    build_run_datasets,
    tokenize_samples,
)
from mb_data.build_cache import load_or_build
from mb_data.chat.template import ChatTemplates
from mb_data.chat.turns import parse_turns
from mb_data.data_checks import training_epoch_samples
from mb_data.errors import BadDocumentError, DataPathError, IndexedFormatError
from mb_data.finetuning.options import REJECTED_OPTIONS, FinetuningOptions, read_options
from mb_data.finetuning.samples import LineEncoder, encode_conversation
from mb_data.finetuning.split_samples import training_epoch_size
from mb_data.text.documents import parse_object
from mb_data.tokenizers.loading import save_tokenizer

END = ByteTokenizer.eod
CHAT = {"chat": True, "use_hf_tokenizer_chat_template": True}
PAIRS = [{"input": "2+2", "output": "four"}, {"input": "capital of France", "output": "Paris"}]
TALK = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "See you"},
        {"role": "user", "content": "is left out"},
    ]
}


class WithBegin(ByteTokenizer):
    """Tokenizer that adds a token before each text, as many tokenizers do."""

    def encode(self, text):
        return [1, *super().encode(text)]


class WithBoth(WithBegin):
    """Tokenizer that adds a token before and after each text."""

    def encode(self, text):
        return [*super().encode(text), 2]


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    folder.mkdir()
    for split in ("training", "validation", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PAIRS))
    return folder


@pytest.fixture
def config(root, tmp_path):
    return FinetuningDatasetConfig(
        64, dataset_root=str(root), cache_dir=str(tmp_path / "cache"), num_workers=0
    )


def build(config, *, train=4, valid=0, test=0, tokenizer=None, **options):
    counts = {"train_samples": train, "valid_samples": valid, "test_samples": test}
    context = DatasetBuildContext(**counts, tokenizer=tokenizer or ByteTokenizer(), **options)
    return config.build_datasets(context)


def seen(ids, loss_mask, tokenizer=None):
    """Return the text, and the part of it that the loss covers, with a bar for the end-of-document token."""
    text = [chr(number) if number != END else "|" for number in ids]
    return "".join(text), "".join(char if yes else "." for char, yes in zip(text, loss_mask, strict=True))


def encoded(line, *, longest=99, tokenizer=None, **options):
    encoder = LineEncoder(
        tokenizer=tokenizer or ByteTokenizer(), options=FinetuningOptions(**options), longest=longest
    )
    sample, complete = encoder.sample(line, location="a.jsonl:1")
    return (*seen(sample.ids, sample.loss_mask), complete)


def test_the_loss_covers_the_answer_and_its_end():
    assert encoded(PAIRS[0]) == ("2+2 four|", "....four|", True)


@pytest.mark.parametrize(
    ("options", "read", "loss_mask"),
    [
        ({"prompt_template": "Q: {input}\nA:{output}"}, "Q: 2+2\nA:four|", ".........four|"),
        ({"answer_only_loss": False}, "2+2 four|", "2+2 four|"),
        ({"add_eos": False}, "2+2 four", "....four"),
    ],
)
def test_options_change_the_sample_of_a_line(options, read, loss_mask):
    assert encoded(PAIRS[0], **options) == (read, loss_mask, True)


def test_the_loss_of_a_conversation_covers_the_assistant():
    read, loss_mask, _ = encoded(TALK)
    assert read == "system: Be short.\nuser: Hi\nassistant: Hello|user: Bye\nassistant: See you|"
    assert loss_mask.strip(".").replace(".", "") == " Hello| See you|"


@pytest.mark.parametrize("kind", [WithBegin, WithBoth])
def test_a_beginning_of_sequence_token_precedes_the_first_turn_only(kind):
    sample = encode_conversation(
        parse_turns(TALK, FinetuningOptions(), location=""),
        tokenizer=kind(),
        options=FinetuningOptions(),
    )
    assert [position for position, number in enumerate(sample.ids) if number == 1] == [0]


@pytest.mark.parametrize(
    ("method", "longest", "read"),
    [
        ("right", 12, "capita Paris|"),
        ("left", 12, "France Paris|"),
        ("right", 4, " Pari"),
    ],
)
def test_the_question_of_a_long_sample_is_truncated_first(method, longest, read):
    long = {"input": "capital of France", "output": "Paris"}
    text, _, complete = encoded(long, longest=longest, truncation_method=method)
    assert (text, complete) == (read, False)


def test_a_long_conversation_is_truncated_at_its_end():
    read, _, complete = encoded(TALK, longest=45)
    assert (len(read), complete) == (46, False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "training.jsonl:2: is not JSON"),
        ("[1]", "is a list; every line must be a JSON object"),
        ('{"input": "a"}', "has nothing for key 'output'"),
        ('{"input": "a", "output": 3}', "has a int for key 'output'"),
        (r'{"input": "a", "output": "\ud83d"}', "has an unpaired surrogate"),
        ('{"messages": "a"}', "messages is not a list"),
        (
            '{"messages": [{"role": "assistant", "content": "a", "loss": 0}]}',
            "messages[0].loss is 0; the loss covers",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}',
            "message 0 has tool_calls, which only a chat template renders",
        ),
        ('{"messages": [{"role": "bot", "content": "a"}]}', "message 0 has no role of system"),
        ('{"messages": [{"role": "user", "content": null}]}', "has nothing for message 0 under 'content'"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "has no message of the assistant"),
    ],
)
def test_a_bad_line_is_named(config, root, line, message):
    (root / "training.jsonl").write_text('{"input": "a", "output": "b"}\n' + line + "\n")
    with pytest.raises(BadDocumentError, match=r"training\.jsonl:2") as error:
        build(config)
    assert message in str(error.value)


def test_bytes_that_are_not_utf_8_are_a_bad_line():
    with pytest.raises(BadDocumentError, match="is not UTF-8"):
        parse_object(b'{"input": "\xff"}', location="a:1")


def test_the_counts_of_samples_are_logged(config, root):
    lines = [*PAIRS, {"input": "a", "output": "b" * 99}, TALK, {}]
    lines[-1] = {"messages": [{"role": "user", "content": "a" * 99}, {"role": "assistant", "content": "b"}]}
    (root / "training.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    logged = []
    build(config, log=logged.append)
    assert logged == [
        "training: 4 samples, 2 of them truncated to 64 tokens, 1 skipped (no token of the answer remained)"
    ]


def test_a_file_without_samples_is_rejected(config, root):
    (root / "training.jsonl").write_text("\n")
    with pytest.raises(NotEnoughSamplesError, match=r"training.jsonl: has no sample \(0 lines"):
        build(config)


def test_a_missing_file_is_named_with_a_fix(config, root):
    (root / "validation.jsonl").unlink()
    with pytest.raises(DataPathError, match=r"validation.jsonl does not exist.*dataset.do_validation=false"):
        build(config, valid=1)
    config.do_validation = False
    assert build(config, valid=1)[1] is None


def test_a_tokenizer_is_required(config):
    with pytest.raises(TokenizerError, match="no tokenizer"):
        build_finetuning_datasets(
            config, DatasetBuildContext(train_samples=1, valid_samples=0, test_samples=0)
        )


def test_lines_are_tokenized_once_and_again_after_a_change(config, root):
    def again(tokenizer=ByteTokenizer()):  # noqa: B008
        return tokenize_samples(root / "training.jsonl", config=config, tokenizer=tokenizer)

    first = again()
    assert (first.reused, again().reused) == (False, True)
    config.memmap_workers = 2
    assert again().reused
    config.seq_length = 8
    other = again()
    assert (other.reused, other.count.cut) == (False, 1)
    (root / "training.jsonl").write_text(json.dumps(PAIRS[0]))
    assert not again().reused
    (first.folder / "starts.npy").write_bytes(b"")
    config.seq_length = 64
    (root / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PAIRS))
    assert not again().reused


def test_several_workers_make_the_same_samples(config, root):
    one = tokenize_samples(root / "training.jsonl", config=config, tokenizer=ByteTokenizer())
    config.memmap_workers, config.cache_dir = 2, f"{config.cache_dir}-2"
    two = tokenize_samples(root / "training.jsonl", config=config, tokenizer=ByteTokenizer())
    assert np.array_equal(one.tokens, two.tokens)
    assert one.starts.tolist() == two.starts.tolist() == [0, 9, 33]


def test_every_epoch_is_reshuffled_except_in_evaluation(config, root):
    lines = [{"input": str(number), "output": "x"} for number in range(50)]
    for split in ("training", "validation"):
        (root / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    train, valid, test = build(config, train=100, valid=60)

    def order(dataset):
        return [
            bytes(sample["tokens"].tolist()[:2]) for sample in map(dataset.__getitem__, range(len(dataset)))
        ]

    passes = order(train)[:50], order(train)[50:]
    assert sorted(passes[0]) == sorted(passes[1])
    assert len({tuple(each) for each in (*passes, order(valid)[:50])}) == 3
    assert order(valid)[50:] == order(valid)[:10]
    assert order(pickle.loads(pickle.dumps(train))) == order(train)
    assert test is None
    with pytest.raises(IndexError):
        train[100]


@pytest.mark.parametrize("packed", [False, True])
def test_a_complete_validation_set_is_one_epoch_in_every_evaluation(config, root, packed):
    lines = [{"input": f"{number:02}", "output": "x" * 20} for number in range(5)]
    (root / "validation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if packed:
        config.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=64)
    datasets = build_run_datasets(
        config,
        DatasetBuildContext(train_samples=0, valid_samples=99, test_samples=0, tokenizer=ByteTokenizer()),
        validation=ValidationSetOptions(complete=True),
    )
    settings = BatchSettings(micro_batch_size=1, global_batch_size=1)
    (found,) = datasets.loaders(settings).iterators(consumed_valid_samples=7).valid
    rounds = [[batch["tokens"].tolist() for batch in found.data()] for _ in range(2)]
    assert (found.batches, len(rounds[0])) == ((3, 3) if packed else (5, 5))
    assert rounds[0] == rounds[1]


LINES = [{"input": "a" * (number % 13), "output": f"{number:03}"} for number in range(40)]


@pytest.fixture
def forty(config, root):
    """Return the section, with 40 samples for training."""
    (root / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return config


@pytest.mark.parametrize(("packed", "expected"), [(False, 40), (True, 7)], ids=["samples", "packs"])
def test_an_epoch_contains_each_sample_once(forty, packed, expected):
    if packed:
        forty.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=64)
    size = training_epoch_size(forty, ByteTokenizer())
    train, _, _ = build(forty, train=2 * size)
    order = [tuple(train[index]["tokens"].tolist()) for index in range(2 * size)]
    assert size == expected
    assert sorted(order[:size]) == sorted(order[size:])
    assert order[:size] != order[size:]


def test_an_epoch_of_a_blend_has_all_samples_of_its_datasets(forty, root):
    forty.dataset_root = ["0.9", str(root), "0.1", str(root)]
    assert training_epoch_size(forty, ByteTokenizer()) == 80


def test_an_epoch_of_fewer_training_samples(forty):
    forty.max_train_samples = 3
    assert training_epoch_size(forty, ByteTokenizer()) == 3


@pytest.mark.parametrize("kept", [False, True], ids=["of the section", "saved by the run"])
def test_an_epoch_of_generated_samples(tmp_path, kept):
    sums = SumsFinetuningConfig(32, largest=3, cache_dir=str(tmp_path))
    section = TokenizerConfig(tokenizer_type="ByteTokenizer")
    if kept:
        save_tokenizer(ByteTokenizer(), tmp_path)
    size = training_epoch_samples(section, sums, saved=tmp_path if kept else None)
    (file,) = tmp_path.rglob("training.jsonl")
    assert size == len(file.read_text().splitlines())


def test_threads_that_need_the_same_samples_build_them_once(tmp_path):
    builds, folder = [], tmp_path / "found"

    def write(building):
        builds.append(building)
        sleep(0.1)
        (building / "data").touch()

    def load(place, *, reused):
        return place if (place / "data").exists() else None

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: load_or_build(folder, load=load, build=write), range(4)))
    assert (found, len(builds), [each.name for each in tmp_path.iterdir()]) == ([folder] * 4, 1, ["found"])


def test_fewer_training_samples_are_the_first_ones(config):
    config.max_train_samples = 1
    train, valid, _ = build(config, train=3, valid=2)
    assert {train.length(position) for position in range(3)} == {8}
    assert [valid.length(position) for position in range(2)] == [8, 23]


def test_batches_are_padded_to_their_longest_sample_or_a_given_length(config):
    train, valid, _ = build(config, valid=2, padding=BatchPadding(multiple=16))
    batch = valid.collate([valid[0], valid[1]])
    assert {name: (tuple(each.shape), each.dtype) for name, each in batch.items()} == {
        "tokens": ((2, 32), torch.int64),
        "labels": ((2, 32), torch.int64),
        "loss_mask": ((2, 32), torch.float32),
        "position_ids": ((2, 32), torch.int64),
        "padding_mask": ((2, 32), torch.bool),
    }
    assert batch["padding_mask"].logical_not().sum(1).tolist() == [8, 23]
    assert not batch["padding_mask"][1, :23].any()
    assert batch["loss_mask"].sum(1).tolist() == [5, 6]
    assert batch["tokens"][0, 8:].unique().tolist() == [END]
    assert batch["position_ids"][1].tolist() == list(range(32))
    _, valid, _ = build(config, valid=2, padding=BatchPadding(to_max_length=True))
    assert valid.collate([valid[0]])["tokens"].shape == (1, 64)
    config.dataset_kwargs = {"pad_to_max_length": True}
    train, _, _ = build(config)
    assert train.collate([train[0]])["tokens"].shape == (1, 64)


def test_addition_problems_are_generated_and_none_is_in_two_files(tmp_path):
    config = SumsFinetuningConfig(64, cache_dir=str(tmp_path), largest=4, num_workers=0)
    build(config, valid=1, test=1)
    lines = {
        split: (tmp_path / "finetuning" / "sums-4" / f"{split}.jsonl").read_text().splitlines()
        for split in ("training", "validation", "test")
    }
    assert {split: len(each) for split, each in lines.items()} == {"training": 21, "validation": 2, "test": 2}
    assert len({line for each in lines.values() for line in each}) == 25
    assert '{"input": "How much is 3 + 4?", "output": "7"}' in [
        line for each in lines.values() for line in each
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chats": True}, "chats is not one of answer_only_loss"),
        (
            {"chat": True, "special_tokens": {"turn_start": "<1>"}},
            "which is not a text for each of system_turn_start",
        ),
        ({"chat": True, "tool_schemas": "[]"}, "no effect with chat=true: special_tokens decide"),
        ({**CHAT, "special_tokens": {}}, "no effect with chat=true: the chat template decides"),
        ({"sample_per_assistant_turn": True}, "has no effect without chat=true"),
        (CHAT | {"add_eos": False}, "add_eos is False, which has no effect with chat=true"),
        (CHAT | {"tool_schemas": "{"}, "tool_schemas is '{', which is not JSON"),
        (CHAT | {"tool_schemas": "3"}, "tool_schemas is '3', which is not a list of JSON schemas"),
        ({"tool_schemas": 3}, "tool_schemas is 3, which is not of type str or dict or list"),
        ({"add_sep": True}, "add_sep is true with sep_id=None"),
        ({"sep_id": 3}, "sep_id is 3, which has no effect without add_sep=true"),
        ({"pad_seq_length_to_mult": 0}, "pad_seq_length_to_mult is 0, which is below 1"),
        ({"virtual_tokens": 2}, "virtual_tokens is 2, which is not supported: prompt tuning"),
        ({"virtual_tokens": False}, "virtual_tokens is False, which is not supported"),
        ({"truncation_field": "input,output"}, "prompt does not contain {output}"),
        ({"add_eos": 1}, "add_eos is 1, which is not of type bool"),
        ({"truncation_method": "middle"}, "truncation_method is 'middle'"),
        ({"prompt_template": "{output} {input}"}, "does not end with the answer"),
        ({"prompt_template": "{output} {input} {output}"}, "contains it twice"),
        ({"prompt_template": "{text} {output}"}, "prompt does not contain {input}"),
        ({"prompt_template": "{input {output}"}, "cannot be parsed"),
        ({"prompt_template": "{input:d} {output}"}, "cannot be parsed"),
        ({"prompt_template": "{input:{width}} {output}"}, "cannot be parsed"),
        ({"prompt_template": "{input.text} {output}"}, "cannot be parsed"),
    ],
)
def test_invalid_options(given, message):
    with pytest.raises(ValueError, match="is") as error:
        read_options(given)
    assert message in str(error.value)


@pytest.mark.parametrize("name", REJECTED_OPTIONS)
def test_options_of_megatron_bridge_are_accepted_with_the_value_that_is_implemented(name):
    assert read_options({name: REJECTED_OPTIONS[name][0]}) == FinetuningOptions()
    with pytest.raises(ValueError, match=f"{name} is 'other', which is not supported: "):
        read_options({name: "other"})


def test_a_separator_precedes_the_answer():
    read, loss_mask, _ = encoded(PAIRS[0], add_sep=True, sep_id=ord("#"))
    assert (read, loss_mask) == ("2+2 #four|", ".....four|")


@pytest.mark.parametrize(("kind", "read"), [(ByteTokenizer, "\x012+2 four|"), (WithBegin, "\x012+2 four|")])
def test_a_sample_begins_with_the_beginning_of_sequence_token(kind, read):
    class Named(kind):
        chat_templates = ChatTemplates(special_tokens={"bos_token": "\x01"})

        def token_id(self, token):
            return ord(token)

    encoder = LineEncoder.of(Named(), FinetuningOptions(add_bos=True), longest=99)
    ((sample, _),) = encoder.samples(PAIRS[0], location="a:1")
    assert seen(sample.ids, sample.loss_mask) == (read, ".....four|")


def test_tokens_that_options_require_must_exist():
    with pytest.raises(TokenizerError, match=r"add_bos: the tokenizer has no beginning-of-sequence token"):
        LineEncoder.of(ByteTokenizer(), FinetuningOptions(add_bos=True), longest=9)
    with pytest.raises(TokenizerError, match=r"sep_id: 257 is not an entry of the tokenizer"):
        LineEncoder.of(ByteTokenizer(), FinetuningOptions(add_sep=True, sep_id=257), longest=9)


@pytest.mark.parametrize(("method", "read"), [("right", "a1ab c|"), ("left", "3a43 c|"), ("right", "a c|")])
def test_several_texts_of_a_prompt_are_truncated_by_equal_shares(method, read):
    line = {"a": "a1a2a3a4", "b": "b1b2b3", "output": "c"}
    options = {"prompt_template": "{a}{b} {output}", "truncation_field": "a, b", "truncation_method": method}
    text, _, complete = encoded(line, longest=len(read) - 1, **options)
    assert (text, complete) == (read, False)


def test_samples_of_a_batch_are_concatenated(config):
    config.pack_sequences_in_batch = True
    padding = BatchPadding(multiple=32, sequence_multiple=4)
    train, _, _ = build(config, train=2, padding=padding)
    samples = [train[0], train[1]]
    lengths = [len(each["tokens"]) for each in samples]
    taken = [-(-length // 4) * 4 for length in lengths]
    batch = train.collate(samples)
    total = batch["tokens"].shape[1]
    assert total % 32 == 0
    assert batch["cu_seqlens"].tolist() == [
        [0, taken[0], sum(taken), *([total] if total > sum(taken) else [])]
    ]
    assert batch["max_seqlen"].tolist() == [max(*taken, total - sum(taken))]
    for start, length, sample in zip((0, taken[0]), lengths, samples, strict=True):
        for name, each in sample.items():
            assert torch.equal(batch[name][0, start : start + length], each)
        assert batch["position_ids"][0, start : start + length].tolist() == list(range(length))
        assert not batch["padding_mask"][0, start : start + length].any()
    assert batch["padding_mask"].sum() == total - sum(lengths)
    assert batch["loss_mask"].sum() == sum(float(each["loss_mask"].sum()) for each in samples)
    assert config.is_packed


def test_batches_are_padded_to_a_multiple(config):
    config.dataset_kwargs = {"pad_seq_length_to_mult": 16}
    train, _, _ = build(config, padding=BatchPadding(multiple=4))
    assert train.collate([train[0]])["tokens"].shape[1] % 16 == 0


def test_a_section_without_data_is_rejected():
    with pytest.raises(ConfigError, match=r"\[V047\] dataset.dataset_root: is None, because"):
        FinetuningDatasetConfig(64).finalize()


def read(config, dataset, *, rank=0, ranks=1, consumed=0, micro=2, batch=8):
    batches = build_data_iterator(
        dataset,
        config=config,
        consumed_samples=consumed,
        micro_batch_size=micro,
        data_parallel_rank=rank,
        data_parallel_size=ranks,
        global_batch_size=batch,
    )
    return [[tuple(row[row != END].tolist()) for row in each["tokens"]] for each in batches]


@pytest.fixture
def many(forty):
    return build(forty, train=64)[0]


def test_a_global_batch_has_the_same_samples_for_every_number_of_ranks_and_loader(config, many):
    one = read(config, many)
    two = [read(config, many, rank=rank, ranks=2) for rank in (0, 1)]
    config.dataloader_type = "single"
    single = read(config, many)

    def steps(batches, micro_batches):
        return [
            sorted(chain.from_iterable(batches[position : position + micro_batches]))
            for position in range(0, len(batches), micro_batches)
        ]

    dealt = [first + second for first, second in zip(*(steps(each, 2) for each in two), strict=True)]
    assert steps(one, 4) == steps(single, 4) == [sorted(each) for each in dealt]
    assert sum(max(map(len, each)) for each in one) < sum(max(map(len, each)) for each in single)


def test_a_run_resumed_at_a_step_equals_an_uninterrupted_run(config, many):
    assert read(config, many, consumed=24) == read(config, many)[12:]
    on_two = {"micro": 4, "ranks": 2}
    assert read(config, many, consumed=24, **on_two) == read(config, many, **on_two)[3:]


@given(
    batches=st.integers(1, 4),
    micro=st.integers(1, 3),
    ranks=st.integers(1, 3),
    steps=st.integers(1, 3),
    rest=st.integers(0, 2),
    sort=st.booleans(),
)
def test_complete_global_batches_cover_the_data_once(batches, micro, ranks, steps, rest, sort):
    size = micro * ranks * steps
    total = batches * size + min(rest, size - 1)
    rows = [
        list(
            BatchSampler(
                total_samples=total,
                consumed_samples=0,
                micro_batch_size=micro,
                data_parallel_rank=rank,
                data_parallel_size=ranks,
                global_batch_size=size,
                length=(lambda position: position % 5) if sort else None,
            )
        )
        for rank in range(ranks)
    ]
    assert {len(each) for each in rows} == {batches * steps}
    for step in range(batches):
        drawn = [
            position for each in rows for row in each[step * steps : (step + 1) * steps] for position in row
        ]
        assert sorted(drawn) == list(range(step * size, (step + 1) * size))


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        (
            {"global_batch_size": 6},
            ValueError,
            "a global batch of 6 is not divisible into micro-batches of 4",
        ),
        ({"global_batch_size": 16}, NotEnoughSamplesError, "12 samples do not fill one global batch of 16"),
        ({"consumed_samples": 13}, ValueError, "13 samples are consumed"),
        ({"data_parallel_rank": 1}, ValueError, "data_parallel_rank=1 of 1"),
    ],
)
def test_a_global_batch_that_cannot_be_distributed_is_rejected(sizes, error, message):
    fine = {"consumed_samples": 0, "micro_batch_size": 4, "data_parallel_rank": 0, "global_batch_size": 8}
    with pytest.raises(error, match=message):
        BatchSampler(total_samples=12, data_parallel_size=1, **(fine | sizes))


def test_the_batch_loader_requires_a_global_batch_size(config, many):
    with pytest.raises(ValueError, match="'batch' with global_batch_size=None"):
        read(config, many, batch=None)


def test_a_missing_file_of_samples_is_named(config, tmp_path):
    with pytest.raises(DataPathError, match=r"none\.jsonl: no such file"):
        tokenize_samples(tmp_path / "none.jsonl", config=config, tokenizer=ByteTokenizer())


@pytest.mark.parametrize("packed", [False, True])
def test_tokens_that_are_cut_short_while_they_are_read_are_named(config, root, packed):
    """A mapped read beyond the end of a file would kill this process (SIGBUS)."""
    rows = [{"input": "2+3=", "output": "5" * 40}] * 200
    (root / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if packed:
        config.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=64)
    train, _, _ = build(config)
    file = next(Path(config.cache_dir).rglob("tokens.bin"))
    os.truncate(file, 100)
    with pytest.raises(IndexedFormatError, match=re.escape(f"{file}: was cut short from")):
        train[0]
