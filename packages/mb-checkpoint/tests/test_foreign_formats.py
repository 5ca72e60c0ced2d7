"""Recognition of foreign checkpoints, advice, and suggestion of the nearest folder."""

import complete_checkpoint
import pytest

from mb_checkpoint import CheckpointConfig
from mb_checkpoint.errors import CheckpointNotFoundError
from mb_checkpoint.formats.foreign import nearest_folder, recognize_foreign, why_no_source
from mb_checkpoint.load.sources import find_checkpoint
from mb_checkpoint.rules import RULES


def make(root, *files, text=""):
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


STEP = "iter_0000100"
FOREIGN = {
    "hugging face": (
        ["config.json", "model.safetensors"],
        "a model in Hugging Face format",
        "Start from its weights",
    ),
    "peft": (
        ["adapter_config.json", "adapter_model.safetensors"],
        "adapters of Hugging Face PEFT",
        "merge_and_unload",
    ),
    "fsdp_dtensor": (
        [f"{STEP}/.metadata", f"{STEP}/__0_0.distcp"],
        "torch.distributed.checkpoint",
        "use_megatron_fsdp",
    ),
    "torchtitan": (
        ["step-100/.metadata", "step-100/__0_0.distcp"],
        "torch.distributed.checkpoint",
        "cannot be resumed",
    ),
}


@pytest.mark.parametrize(("files", "kind", "advice"), FOREIGN.values(), ids=FOREIGN)
def test_the_error_of_a_foreign_checkpoint_names_its_kind_and_the_fix(tmp_path, files, kind, advice):
    make(tmp_path, *files, "latest_checkpointed_iteration.txt", text="100")
    with pytest.raises(CheckpointNotFoundError) as rejected:
        find_checkpoint(CheckpointConfig(load=str(tmp_path)))
    message = str(rejected.value)
    assert (kind in message, advice in message, "Remove" in message) == (True, True, False)
    assert kind in why_no_source(str(tmp_path), resume=True)


def test_megatron_lm_is_recognized_and_can_be_resumed(tmp_path):
    make(tmp_path, *(f"{STEP}/{name}" for name in (".metadata", "metadata.json")))
    found = recognize_foreign(tmp_path)
    assert found.kind == f"a Megatron-LM checkpoint in the format torch_dist ({STEP})"
    assert found.advice(resume=True) == "Nothing needs to be done: a run resumes from it"
    assert why_no_source(str(tmp_path), resume=True) is None


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (f"{STEP}/mp_rank_00/model_optim_rng.pt", f"{STEP}/mp_rank_00"),
        (f"{STEP}/mp_rank_00_001/model_optim_rng.pt", f"{STEP}/mp_rank_00_001"),
        ("release/mp_rank_00/model_optim_rng.pt", "release/mp_rank_00"),
    ],
)
def test_the_legacy_layout_is_recognized_and_can_be_resumed(tmp_path, file, named):
    make(tmp_path, file)
    found = recognize_foreign(tmp_path)
    assert found.kind == f"a Megatron-LM checkpoint in the legacy format `torch` ({named})"
    assert "sizes of its run read it" in found.advice(resume=True)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release" if "release" in named else "100")
    source, chosen = find_checkpoint(CheckpointConfig(load=str(tmp_path)))
    assert (source, chosen.path) == (
        "weights" if "release" in named else "resumed",
        tmp_path / named.split("/")[0],
    )
    assert why_no_source(str(tmp_path), resume=True) is None


def test_megatron_bridge_is_distinguished_from_this_package_by_its_run_config(tmp_path):
    make(tmp_path, f"{STEP}/.metadata", f"{STEP}/metadata.json")
    make(
        tmp_path,
        f"{STEP}/run_config.yaml",
        text="_target_: megatron.bridge.training.config.ConfigContainer\n",
    )
    found = recognize_foreign(tmp_path)
    assert found.kind == f"a Megatron-Bridge checkpoint in the format torch_dist ({STEP})"
    assert f"checkpoint.pretrained_checkpoint={tmp_path}" in found.advice(resume=True)
    assert why_no_source(str(tmp_path), resume=False) is None  # its weights can be read
    make(tmp_path, f"{STEP}/run_config.yaml", text="_target_: mb_trainer.config.ConfigContainer\n")
    assert recognize_foreign(tmp_path) is None


def test_own_checkpoints_and_empty_folders_are_not_foreign(tmp_path):
    complete_checkpoint.save(tmp_path, 100)
    assert recognize_foreign(tmp_path) is None
    assert recognize_foreign(tmp_path / "nowhere") is None
    assert why_no_source(str(tmp_path), resume=True) is None


def test_the_nearest_folder_with_a_checkpoint_is_named(tmp_path):
    (tmp_path / "runs" / "gpt_tinny").mkdir(parents=True)
    complete_checkpoint.fill(tmp_path / "runs" / "gpt_tiny" / "checkpoints" / STEP, 100)
    right = tmp_path / "runs" / "gpt_tiny"
    assert nearest_folder(tmp_path / "runs" / "gpt_tini" / "checkpoints") == right / "checkpoints"
    assert nearest_folder(tmp_path / "runs") == right / "checkpoints"
    text = why_no_source(str(tmp_path / "runs" / "gpt_tini" / "checkpoints"), resume=True)
    assert text.startswith("no such folder: ")
    assert text.endswith(f"the nearest existing folder, {right / 'checkpoints'}, holds checkpoints")


def test_a_folder_with_a_configuration_alone_is_not_a_checkpoint(tmp_path):
    (tmp_path / "gpt_tinny").mkdir()
    (tmp_path / "gpt_tinny" / "run_config.yaml").touch()
    assert nearest_folder(tmp_path / "gpt_tinn") == tmp_path / "gpt_tinny"
    assert why_no_source(str(tmp_path / "gpt_tinn"), resume=True).endswith("gpt_tinny, holds no checkpoint")
    assert why_no_source(str(tmp_path / "gpt_tinny"), resume=True).endswith(
        "gpt_tinny has a run_config.yaml and no checkpoint"
    )
    complete_checkpoint.fill(tmp_path / "gpt" / STEP, 100)
    assert nearest_folder(tmp_path / "gpt_tinn") == tmp_path / "gpt"


def test_an_empty_folder_with_another_name_is_not_suggested(tmp_path):
    (tmp_path / "other").mkdir()
    missing = tmp_path / "base" / "checkpoints"
    assert why_no_source(str(missing), resume=True) == f"no such folder: {missing}"


def test_an_unreadable_source_is_a_reason():
    assert "cannot be read (OSError" in why_no_source("/" + "x" * 300, resume=True)


def test_only_the_folder_that_a_run_saves_to_may_be_empty(tmp_path):
    own, other = str(tmp_path / "own"), str(tmp_path / "othr")
    assert find_checkpoint(CheckpointConfig(load=own, save=f"{own}/../own")) == ("nothing", None)
    assert find_checkpoint(CheckpointConfig(load=other, save=own), may_be_empty=True) == ("nothing", None)
    with pytest.raises(
        CheckpointNotFoundError, match=r"checkpoint\.load: no such folder: .*othr.* random weights"
    ):
        find_checkpoint(CheckpointConfig(load=other, save=own))


def verdict(number, *values):
    rule = next(rule for rule in RULES if rule.id == number)
    return rule.message(dict(zip(rule.fields, values, strict=False)))


def test_a_load_may_be_empty_where_the_run_has_non_persistent_checkpoints(tmp_path):
    load, save, local = (str(tmp_path / name) for name in ("load", "save", "local"))
    named = (load, save, False, "local", None, local, None, True)
    assert "no such folder" in verdict("CK41", *named)
    make(tmp_path / "local", "0/iter_0000004_local.pt")
    assert verdict("CK41", *named) is None
    assert verdict("CK41", load, save, True, None, None, None, "mine.Manager", True) is None
    assert "no such folder" in verdict("CK41", load, save, True, "local", None, local, None, True)
    complete_checkpoint.fill(tmp_path / "save" / "non_persistent" / STEP, 100)
    assert verdict("CK41", load, save, False, "global", None, None, None, True) is None


def test_a_step_is_searched_for_among_the_existing_ones(tmp_path):
    complete_checkpoint.fill(tmp_path / STEP, 100)
    assert verdict("CK43", 100, str(tmp_path)) is None
    assert verdict("CK43", 100, str(tmp_path / STEP)) is None
    assert verdict("CK43", 7, str(tmp_path)).endswith("has no step 7; steps there: 100")
    assert verdict("CK43", 7, "/" + "x" * 300) is None


@pytest.mark.parametrize("number", ["V064", "CK41", "CK42", "CK43"])
def test_urls_are_checked_by_the_rules_on_paths_only(number):
    rule = next(rule for rule in RULES if rule.id == number)
    given = {**dict.fromkeys(rule.fields), rule.fields[0]: "s3://bucket/x"}
    if number == "CK43":
        given |= {"checkpoint.ckpt_step": 3, "checkpoint.load": "s3://bucket/x"}
    assert rule.message(given) is None
