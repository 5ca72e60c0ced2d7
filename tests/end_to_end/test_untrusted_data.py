"""No command executes what tokenizers, folders of weights or caches of data contain: a payload in each file."""

import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from runs import train_here
from typer.testing import CliRunner

from mb_data import IndexedWriter
from mb_data.errors import IndexedFormatError
from mb_trainer.cli.app import app


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "executed"


def mb(*words):
    """Run a command in this process; an error that is not reported in its words fails the test."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def object_array(payload):
    values = np.empty(1, object)
    values[0] = payload
    return values


def as_pickle(payload):
    return pickle.dumps(payload)


def as_array(payload):
    stream = io.BytesIO()
    np.save(stream, object_array(payload), allow_pickle=True)
    return stream.getvalue()


def as_archive(payload):
    stream = io.BytesIO()
    np.savez(stream, members=object_array(payload), starts=object_array(payload))
    return stream.getvalue()


FORMS = [as_pickle, as_array, as_archive]

TOKENIZERS = {
    "HuggingFaceTokenizer": "tokenizer.json",
    "SentencePieceTokenizer": "tokenizer.model",
    "TikTokenizer": "tiktoken.json",
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_command_executes_what_a_tokenizer_file_holds(tmp_path, marker, kind):
    file = tmp_path / TOKENIZERS[kind]
    file.write_bytes(as_pickle(Payload(marker)))
    (tmp_path / "text.txt").write_text("to be")
    with IndexedWriter(tmp_path / "pair", dtype=np.uint16) as writer:
        writer.add_document([1, 2])
    section = [f"tokenizer.tokenizer_type={kind}", f"tokenizer.tokenizer_model={file}"]
    pair, out = tmp_path / "pair", tmp_path / "built"
    for words in (
        *(["check", "gpt_tiny", *section], ["plan", "gpt_tiny", *section]),
        *(["pretrain", "gpt_tiny", *section, "--out", tmp_path / "run"], ["data", "index", *section]),
        ["data", "build", "--input", tmp_path / "text.txt", "--tokenizer", file, "--out", out],
        *(["data", verb, pair, "--tokenizer", file] for verb in ("show", "verify")),
    ):
        assert mb(*words).exit_code in (1, 2), words
        assert not marker.exists(), words


CODE = "import os\nos.mkdir({!r})\n\n\nclass Theirs:\n    pass\n"
AUTO_MAP = {
    "AutoConfig": "theirs.Theirs",
    "AutoTokenizer": ["theirs.Theirs", "theirs.Theirs"],
    "AutoModelForCausalLM": "theirs.Theirs",
}


def foreign_folder(folder, marker, *, model_type):
    """Write a folder in Hugging Face's form that brings code: `auto_map`, a module and a pickle of weights."""
    folder.mkdir()
    (folder / "theirs.py").write_text(CODE.format(str(marker)))
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    config = {**sizes, "vocab_size": 64, "model_type": model_type, "auto_map": AUTO_MAP}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {"tokenizer_class": "Theirs", "auto_map": AUTO_MAP}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("")
    (folder / "pytorch_model.bin").write_bytes(as_pickle(Payload(marker)))
    return folder


@pytest.mark.parametrize("model_type", ["llama", "theirs"])
def test_a_folder_that_brings_code_is_read_without_it(tmp_path, marker, model_type):
    folder = foreign_folder(tmp_path / "hf", marker, model_type=model_type)
    section = ["tokenizer.tokenizer_type=HuggingFaceTokenizer", f"tokenizer.tokenizer_model={folder}"]
    options = "tokenizer.hf_tokenizer_kwargs={trust_remote_code: true}"
    for words in (
        *(["check", "gpt_tiny", *section], ["check", "gpt_tiny", *section, options]),
        ["data", "show", tmp_path / "pair", "--tokenizer", folder],
        ["import-hf", folder, "--out", tmp_path / "out"],
        ["check", "gpt_tiny", f"checkpoint.pretrained_checkpoint={folder}"],
        ["ckpt", "ls", folder],
    ):
        assert mb(*words).exit_code in (1, 2), words
        assert not marker.exists(), words
    mb("check", "gpt_tiny", *section, "tokenizer.trust_remote_code=true")
    assert marker.exists()  # with consent, it is code


def header_of(payload):
    """A safetensors file whose header is a pickle."""
    content = as_pickle(payload)
    return len(content).to_bytes(8, "little") + content


def header_without_end(_):
    return (1 << 62).to_bytes(8, "little") + b"{}"


def header_that_reaches_beyond_the_file(_):
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content", [as_pickle, header_of, header_without_end, header_that_reaches_beyond_the_file]
)
def test_safetensors_with_odd_headers_are_refused(tmp_path, marker, content):
    folder = foreign_folder(tmp_path / "hf", marker, model_type="llama")
    (folder / "model.safetensors").write_bytes(content(Payload(marker)))
    result = mb("import-hf", folder, "--out", tmp_path / "out")
    assert (result.exit_code, "model.safetensors: cannot be read" in result.stderr) == (1, True)
    assert not marker.exists()


def test_an_index_of_safetensors_names_no_file_elsewhere(tmp_path, marker):
    folder = foreign_folder(tmp_path / "hf", marker, model_type="llama")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "../elsewhere.safetensors"}})
    )
    result = mb("import-hf", folder, "--out", tmp_path / "out")
    assert (result.exit_code, "is not a file below its folder" in result.stderr) == (1, True)


@pytest.mark.parametrize("form", FORMS)
def test_no_run_executes_what_cached_indices_hold(overrides, tmp_path, marker, form):
    words = [word for word in overrides if not word.startswith("dataset.cache_dir=")]
    words += [f"dataset.cache_dir={tmp_path}/cache", "train.train_iters=2", "validation.eval_iters=0"]
    assert mb("data", "index", *words).exit_code == 0
    indices = sorted((tmp_path / "cache").rglob("*.npy"))
    assert indices
    for path in indices:
        path.write_bytes(form(Payload(marker)))
    result = mb("data", "index", *words)
    assert (result.exit_code, "is not an array of numbers" in result.stderr) == (2, True)
    with pytest.raises(IndexedFormatError, match=r"is not an array of numbers.*Remove the file"):
        train_here(words, tmp_path / "run")
    assert not marker.exists()
