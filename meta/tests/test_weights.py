"""The tokenizer of the weights that a run starts from is the run's."""

import pytest

from mb_checkpoint.layout import iteration_directory
from mb_trainer.reading import read_request
from mb_trainer.run_folder import RunFolder, place

HUGGING_FACE = "HuggingFaceTokenizer"


@pytest.fixture
def base(tmp_path):
    """A run folder with two checkpoints that keep a tokenizer."""
    for step in (100, 200):
        folder = iteration_directory(tmp_path / "base" / "checkpoints", step)
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").touch()
    return tmp_path / "base"


def tokenizer(recipe, *words, out):
    request = read_request([recipe, *words])
    place(request.config, RunFolder(out), request.provenance)
    section = request.config.tokenizer
    return section.tokenizer_type, section.tokenizer_model


@pytest.mark.parametrize("recipe", ["gpt_tiny", "lora_tiny", "sft_tiny"])
def test_a_run_on_other_weights_reads_by_their_tokenizer(recipe, base, tmp_path):
    newest = iteration_directory(base / "checkpoints", 200)
    for named in (base, base / "checkpoints", newest):
        (newest / "train_state.pt").touch()
        found = tokenizer(recipe, f"checkpoint.pretrained_checkpoint={named}", out=tmp_path / "out")
        assert found == (HUGGING_FACE, str(newest / "tokenizer.json"))


def test_a_tokenizer_that_the_user_named_stays(base, tmp_path):
    words = [f"checkpoint.pretrained_checkpoint={base}", "tokenizer.tokenizer_type=ByteTokenizer"]
    assert tokenizer("gpt_tiny", *words, out=tmp_path / "out") == ("ByteTokenizer", None)
    words[1] = "tokenizer.tokenizer_model=mine.json"
    assert tokenizer("lora_tiny", *words, out=tmp_path / "out") == (HUGGING_FACE, "mine.json")


def test_without_a_kept_tokenizer_nothing_is_taken(tmp_path):
    words = [f"checkpoint.pretrained_checkpoint={tmp_path}"]
    assert tokenizer("gpt_tiny", *words, out=tmp_path / "out") == (None, None)


@pytest.mark.parametrize("damage", ["", "\n- [", "\ntokenizer: 3"])
def test_a_run_that_goes_on_keeps_the_one_that_it_began_with(damage, base, tmp_path):
    first, newest = (
        str(iteration_directory(base / "checkpoints", step) / "tokenizer.json") for step in (100, 200)
    )
    (tmp_path / "run_config.yaml").write_text(f"tokenizer:\n  tokenizer_model: {first}{damage}")
    found = tokenizer("lora_tiny", f"checkpoint.pretrained_checkpoint={base}", out=tmp_path)
    assert found == (HUGGING_FACE, newest if damage else first)
