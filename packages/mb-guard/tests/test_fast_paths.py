"""The table of fast paths, compared with the imports of the installed Megatron Core."""

import ast
from pathlib import Path

import pytest

from mb_guard.fast_paths import FAST_PATHS, FastPath, lost_names
from mb_guard.sources import module_file

PARTS_LEFT_OUT = {
    "inference": "serving",
    "export": "serving",
    "resharding": "serving",
    "tokenizers": "optional tokenizers",
    "models/huggingface": "models of transformers",
    "models/audio": "models of NeMo",
    "models/vision": "models of NeMo",
    "post_training": "quantisation",
    "datasets": "optional storage",
    "distributed/fsdp": "FSDP checks what it needs",
    "transformer/experimental_attention_variant": "experimental attention requires its kernels",
    "tensor_parallel/inference_layers.py": "serving",
    "tensor_parallel/generalized_tensor_parallelism.py": "an experimental parallelism that requires its names",
}
NAMES_LEFT_OUT = {
    "torch": "required",
    "packaging": "required",
    "importlib": "standard library",
    "inspect": "standard library",
    "absl": "a logger",
    "yaml": "error messages",
    "pynvml": "energy",
    "tqdm": "progress bars",
    "cuda": "names of streams",
    "einops": "Mamba layers require it",
    "nvidia_kitchen": "not public",
    "nvidia_resiliency_ext": "one row for all",
    "causal_conv1d": "one row for all",
    "fla": "one row for all",
    "mamba_ssm": "one row for all",
    "emerging_optimizers": "one row for all",
    "flashattn_hopper": "an older name of FlashAttention 3",
    "flash_mla": "serving",
    "flash_attn": "one row for all",
    "flash_attn_3": "one row for all",
    "flashinfer": "serving",
    "flashinfer_cubin": "serving",
    "flashinfer_jit_cache": "serving",
    "amp_C": "Apex's part of multi_tensor_applier",
    "apex": "one row for all",
    "transformer_engine_torch": "required by Transformer Engine",
    "transformer_engine.pytorch.fp8": "FP8 needs Transformer Engine",
    "transformer_engine.pytorch.float8_tensor": "FP8 needs Transformer Engine",
    "transformer_engine.pytorch.tensor": "FP8 needs Transformer Engine",
    "transformer_engine.pytorch.module": "FP8 needs Transformer Engine",
    "transformer_engine.pytorch.distributed": "recomputation in FP8 needs Transformer Engine",
    "transformer_engine.pytorch.cpu_offload": "a switch that raises an error without it",
    "transformer_engine.pytorch.cpu_offload_v1": "an older name",
    "transformer_engine.pytorch.attention.apply_rotary_pos_emb": "an older name",
    "transformer_engine.pytorch.utils.make_weak_ref": "CUDA graphs require it",
    "transformer_engine.pytorch.ep": "communication of experts that requires it",
    "transformer_engine.pytorch.ops.basic": "buffers of the fuser",
    "cudnn": "experimental attention requires it",
    "wandb": "a logger",
    "deep_ep.utils": "with the row of deep_ep",
    "triton": "one row for all",
}


def optional_imports(root):
    """Yield each name that Megatron Core imports within `try`."""
    for path in sorted(root.rglob("*.py")):
        inside = str(path.relative_to(root))
        if any(inside.startswith(part) for part in PARTS_LEFT_OUT):
            continue
        for attempt in ast.walk(ast.parse(path.read_text())):
            if isinstance(attempt, ast.Try) and attempt.handlers:
                for node in (node for part in attempt.body for node in ast.walk(part)):
                    if isinstance(node, ast.Import):
                        yield from (alias.name for alias in node.names)
                    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def in_table(name):
    return name == "transformer_engine" or any(
        name in {path.module, *(f"{path.module}.{each}" for each in path.names)} for path in FAST_PATHS
    )


def is_left_out(name):
    return any(name == each or name.startswith(f"{each}.") for each in NAMES_LEFT_OUT)


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_every_optional_import_of_megatron_is_in_the_table():
    file = module_file("megatron.core")
    if file is None:
        pytest.skip("needs megatron-core")
    names = {name for name in optional_imports(file.parent) if not name.startswith("megatron.")}
    assert sorted(name for name in names if not in_table(name) and not is_left_out(name)) == []
    assert sum(map(in_table, names)) > 30


def test_ids_are_unique():
    assert len({path.id for path in FAST_PATHS}) == len(FAST_PATHS)


def path(module, *names):
    return FastPath(module=module, names=names, used_for="", without="", matters="", distribution="")


def test_missing_names_are_found_without_an_import(tmp_path, monkeypatch):
    (tmp_path / "quick_kernels.py").write_text("raise RuntimeError('imported')\ndef fast(): pass\n")
    monkeypatch.syspath_prepend(str(Path(tmp_path)))
    assert lost_names(path("quick_kernels", "fast", "faster")) == ("faster",)
    assert lost_names(path("quick_kernels")) == ()
    assert lost_names(path("quickest_kernels", "fast")) == ("fast",)
    assert lost_names(path("quickest_kernels")) == ("quickest_kernels",)
