"""Scripts for Megatron-Bridge that build, load and save models themselves; transformers computes the right logits."""

import os
import subprocess
import sys
from types import SimpleNamespace

import mb_host

mb_host.install()  # before megatron is imported

import pytest  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from mb_launch import WorldError  # noqa: E402
from mb_trainer.bridge import AutoBridge  # noqa: E402
from mb_trainer.bridge.models import GPTModelProvider  # noqa: E402
from mb_trainer.bridge.models.conversion import weights_verification_table  # noqa: E402
from mb_trainer.bridge.models.decorators import torchrun_main  # noqa: E402
from mb_trainer.bridge.models.hf_pretrained.utils import is_safe_repo  # noqa: E402
from mb_trainer.bridge.training.initialize import destroy_global_state  # noqa: E402
from mb_trainer.bridge.utils import common_utils, slurm_utils  # noqa: E402
from mb_trainer.config import DistributedDataParallelConfig  # noqa: E402

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 250,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16),
}
SAVED = """
import sys
import mb_trainer
import torch
from mb_trainer.bridge import AutoBridge

folder, tensor_parallel, pipeline_parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
bridge = AutoBridge.from_hf_pretrained(folder + "/in")
provider = bridge.to_megatron_provider()
provider.tensor_model_parallel_size = tensor_parallel
provider.pipeline_model_parallel_size, provider.pipeline_dtype = pipeline_parallel, torch.float32
provider.finalize()
provider.initialize_model_parallel(seed=0)
model = provider.provide_distributed_model(wrap_with_ddp=False)
bridge.save_hf_pretrained(model, folder + "/out", distributed_save=True)
try:
    list(bridge.export_hf_weights(model))
except ValueError as error:
    assert "the model is distributed over ranks" in str(error)
bridge.save_megatron_model(model, folder + "/weights")
layout = {"tensor_model_parallel_size": tensor_parallel, "pipeline_model_parallel_size": pipeline_parallel}
loaded = bridge.load_megatron_model(folder + "/weights", mp_overrides=layout, wrap_with_ddp=False)
assert all(torch.equal(a, b) for a, b in zip(model[0].parameters(), loaded[0].parameters(), strict=True))
"""


@pytest.fixture(autouse=True)
def _groups():
    yield
    destroy_global_state()


@pytest.fixture(params=CONFIGS)
def original(request, tmp_path):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()
    model.save_pretrained(tmp_path / "in")
    return SimpleNamespace(model=model, folder=tmp_path / "in")


def equal_tensors(one, other):
    one, other = (load_file(folder / "model.safetensors") for folder in (one, other))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_computes_the_logits_of_transformers_and_is_saved_bit_for_bit(original, tmp_path):
    bridge = AutoBridge.from_hf_pretrained(original.folder)
    model = bridge.to_megatron_model(wrap_with_ddp=False)
    tokens = torch.randint(0, SIZES["vocab_size"], (2, 16))
    with torch.no_grad():
        logits = model[0](tokens, torch.arange(16).expand(2, -1), None)
        assert torch.equal(logits, original.model(tokens).logits)
    bridge.save_hf_pretrained(model, tmp_path / "out")
    assert equal_tensors(original.folder, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, logits)
    table = weights_verification_table(bridge, model)
    assert {*table.columns[-1].cells} == {"yes"}
    assert bridge.hf_pretrained.config.vocab_size == SIZES["vocab_size"]
    assert len(bridge.hf_pretrained.state) == table.row_count
    with pytest.raises(KeyError):
        bridge.hf_pretrained.state["none"]


@pytest.mark.parametrize("layout", [("2", "1"), pytest.param(("1", "2"), marks=pytest.mark.matrix)])
def test_a_distributed_model_is_saved_bit_for_bit(layout, tmp_path):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"])
    model.resize_token_embeddings(256)
    model.save_pretrained(tmp_path / "in")
    (tmp_path / "script.py").write_text(SAVED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run([*command, tmp_path / "script.py", tmp_path, *layout], check=True)
    assert equal_tensors(tmp_path / "in", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "script.py", "weights"]


def test_weights_are_loaded_into_wrapped_chunks_and_hooks_are_called(original):
    bridge = AutoBridge.from_hf_pretrained(original.folder)
    called = []
    model = bridge.to_megatron_model(
        load_weights=False,
        ddp_config=DistributedDataParallelConfig(),
        bf16=True,
        pre_wrap_hook=[called.append, called.append],
        post_wrap_hook=called.append,
    )
    assert [len(chunks) for chunks in called] == [1, 1, 1]
    bridge.load_hf_weights(model)
    weights = dict(bridge.export_hf_weights(model, cpu=True))
    assert all(
        torch.equal(weights[name], value.bfloat16()) for name, value in bridge.hf_pretrained.state.items()
    )


def test_options_without_effect_are_errors(original, tmp_path):
    bridge = AutoBridge.from_hf_pretrained(original.folder)
    provider = bridge.to_megatron_provider()
    cases = [
        ({}, "ddp_config: is required"),
        ({"wrap_with_ddp": False, "model_type": "t5"}, "model_type: t5 is not supported"),
        ({"wrap_with_ddp": False, "init_model_with_meta_device": True}, "init_model_with_meta_device"),
        ({"wrap_with_ddp": False, "mixed_precision_wrapper": print}, "mixed_precision_wrapper"),
        ({"wrap_with_ddp": False, "fp16": True, "bf16": True}, "fp16: is set with bf16"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            provider.provide_distributed_model(**options)
    with pytest.raises(TypeError, match="unexpected keyword"):
        provider.provide_distributed_model(colour="red")
    with pytest.raises(ValueError, match="vocab_size: is not set"):
        GPTModelProvider(num_layers=1, hidden_size=32, num_attention_heads=2).provide_distributed_model(
            wrap_with_ddp=False
        )
    with pytest.raises(NotImplementedError, match="register_pre_wrap_hook: is not supported"):
        provider.register_pre_wrap_hook(print)
    with pytest.raises(NotImplementedError, match="register_post_wrap_hook: is not supported"):
        provider.register_post_wrap_hook(print)
    model = provider.provide_distributed_model(wrap_with_ddp=False)
    with pytest.raises(ValueError, match="allowed_mismatched_params"):
        bridge.load_hf_weights(model, allowed_mismatched_params=["lm_head.weight"])
    for options in (
        {"merge_adapter_weights": False},
        {"save_every_n_ranks": 2},
        {"weight_dtype": torch.float16},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            bridge.save_hf_pretrained(model, tmp_path / "none", **options)
    assert not (tmp_path / "none").exists()


def test_small_functions_of_scripts(monkeypatch, capsys, tmp_path):
    assert [is_safe_repo("a/b", trust) for trust in (None, True, False)] == [False, True, False]
    monkeypatch.setattr(os, "environ", {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
    assert common_utils.get_rank_safe() == common_utils.get_last_rank() == 1
    assert (common_utils.get_world_size_safe(), common_utils.get_local_rank_preinit()) == (2, 1)
    common_utils.print_rank_0("first")
    common_utils.print_rank_last("last")
    assert capsys.readouterr().out == "last\n"
    assert common_utils.resolve_path(tmp_path / "a" / "..") == tmp_path.resolve()
    assert slurm_utils.resolve_slurm_master_addr() is slurm_utils.resolve_slurm_master_port() is None
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}
    monkeypatch.setattr(os, "environ", {**slurm, "SLURM_STEP_NODELIST": "node[3-4]", "SLURM_STEP_ID": "0"})
    assert slurm_utils.resolve_slurm_master_addr() == "node3"
    assert isinstance(slurm_utils.resolve_slurm_master_port(), int)


def test_ranks_of_a_script_are_those_of_its_open_process_group(monkeypatch, capsys):
    monkeypatch.setattr(os, "environ", {"LOCAL_RANK": "1"})
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    try:
        common_utils.print_rank_0("first")
        ranks = common_utils.get_rank_safe(), common_utils.get_local_rank_preinit()
        assert (*ranks, common_utils.get_world_size_safe(), common_utils.get_last_rank()) == (2, 1, 4, 3)
    finally:
        torch.distributed.destroy_process_group()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(os, "environ", {"LOCAL_RANK": "one"})
    with pytest.raises(WorldError, match="LOCAL_RANK: must be a whole number, is 'one'"):
        common_utils.get_local_rank_preinit()


def test_the_main_function_of_a_script_closes_the_process_group(tmp_path):
    @torchrun_main
    def main(value):
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        return value

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    assert main(3) == 3
    assert not torch.distributed.is_initialized()
