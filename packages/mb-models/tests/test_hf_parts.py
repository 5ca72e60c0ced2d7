"""Exports that several processes share: each loads and writes its files, and the folder is that of one process."""

import dataclasses
import json

import pytest
import torch
from hf_models import make
from hf_ranks import build

from mb_host.megatron.layers import host_block_spec
from mb_models.errors import OutputExistsError
from mb_models.hf.config_json import read_config, section_of
from mb_models.hf.conversion import memory_mapped_model
from mb_models.hf.export import export_model
from mb_models.hf.export_part import WHOLE, ExportPart
from mb_models.hf.load import load_hf_weights
from mb_models.peft.config import DoRA

transformers = pytest.importorskip("transformers")
THREE = [ExportPart(index=index, count=3) for index in range(3)]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Source:
    """Trained model, and its export in parts."""

    def __init__(self, kind, groups, folder, *, peft=None):
        make(kind, folder / "in")
        section = section_of(read_config(folder / "in"), dtype="float32")
        self.section, self.groups, self.peft = (
            dataclasses.replace(section, transformer_impl="local"),
            groups,
            peft,
        )
        self.chunk = build(self.section, groups)
        load_hf_weights([self.chunk], folder / "in", pg_collection=groups)
        if peft is not None:
            peft.install([self.chunk])
            for name, value in self.chunk.named_parameters():
                if ".adapter." in name:
                    torch.nn.init.normal_(value, std=0.1)
        self.pages = folder / "pages"
        self.loaded: set[str] = set()

    def export(self, out, part, **options):
        with memory_mapped_model(
            self.section, groups=self.groups, layer_spec=host_block_spec, folder=self.pages
        ) as empty:

            def load(is_selected, is_needed=lambda _name: True):
                def wanted(name):
                    under = self.peft is not None and ".adapter." not in name
                    return is_selected(name) or (under and is_needed(name))

                every = self.chunk.state_dict().items()
                stored = {name: value for name, value in every if value is not None and wanted(name)}
                self.loaded |= stored.keys()
                empty.load_state_dict(stored, strict=False)

            export_model(
                empty,
                out,
                section=self.section,
                load=load,
                pg_collection=self.groups,
                peft=self.peft,
                part=part,
                shard_bytes=20_000,
                copy_files=lambda folder: (folder / "tokenizer.json").write_text("{}"),
                **options,
            )


@pytest.mark.parametrize(
    ("kind", "peft"),
    [("llama-tied-llama3", None), ("gpt-oss", None), ("qwen3-moe", None), ("qwen3", DoRA(dim=2))],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_three_parts_are_the_folder_of_one_process(kind, peft, groups, tmp_path):
    source = Source(kind, groups, tmp_path, peft=peft)
    source.export(tmp_path / "whole", WHOLE)
    everything, shares = source.loaded, []
    for part in (THREE[2], THREE[0], THREE[1]):
        assert not (tmp_path / "parts" / "model.safetensors.index.json").exists()
        source.loaded = set()
        source.export(tmp_path / "parts", part)
        shares.append(source.loaded)
    whole = files(tmp_path / "whole")
    assert len({path.stat().st_mode for path in (tmp_path / "whole").iterdir()}) == 1
    assert files(tmp_path / "parts") == whole
    assert len(whole) > 5
    assert set().union(*shares) == everything
    assert max(len({name for name in share if ".adapter." not in name}) for share in shares) < 0.8 * len(
        everything
    )


def test_a_folder_without_one_part_is_not_complete(groups, tmp_path):
    source = Source("llama", groups, tmp_path)
    for part in THREE[:2]:
        source.export(tmp_path / "parts", part)
    with pytest.raises(OSError, match=r"no file named model.safetensors"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "parts")
    source.export(tmp_path / "parts", THREE[2])
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "parts") is not None


def test_there_may_be_more_processes_than_files(groups, tmp_path):
    source = Source("llama", groups, tmp_path)
    for index in (999, 0):
        source.export(tmp_path / "out", ExportPart(index=index, count=1000))
    written = files(tmp_path / "out")
    assert [name for name in written if name.endswith(".safetensors")] == ["model-00001-of-00006.safetensors"]


def test_parts_of_different_exports_are_not_mixed(groups, tmp_path):
    source = Source("llama", groups, tmp_path)
    out = tmp_path / "parts"
    source.export(out, THREE[0], carried=tmp_path / "one")
    with pytest.raises(OutputExistsError, match=r"parts holds \.export-parts\.json of another export"):
        source.export(out, THREE[1], carried=tmp_path / "two")
    with pytest.raises(OutputExistsError, match=r"holds model-00001-of-\d+\.safetensors of another export"):
        source.export(out, THREE[0], carried=tmp_path / "one")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(OutputExistsError, match=r"other holds notes\.txt of another export"):
        source.export(tmp_path / "other", THREE[1])


@pytest.mark.parametrize(
    ("named", "padded", "tokens"), [(200, False, 200), (100, False, 256), (100, True, 100), (40, True, 99)]
)
def test_rows_beyond_the_tokens_of_a_source_are_left_out_where_they_are_padding(
    named, padded, tokens, groups, tmp_path
):
    source = Source("llama", groups, tmp_path)
    source.section = dataclasses.replace(source.section, vocab_size=256)
    source.chunk = build(source.section, groups)
    (tmp_path / "like").mkdir()
    content = json.loads((tmp_path / "in" / "config.json").read_text()) | {"vocab_size": named}
    (tmp_path / "like" / "config.json").write_text(json.dumps(content))
    options = {"carried": tmp_path / "like", "tokenizer_vocab_size": 99, "padded_vocabulary": padded}
    source.export(tmp_path / "out", WHOLE, **options)
    assert read_config(tmp_path / "out")["vocab_size"] == tokens


def test_a_part_that_does_not_exist_is_rejected():
    with pytest.raises(ValueError, match=r"part: 3/3 does not exist"):
        ExportPart(index=3, count=3)
