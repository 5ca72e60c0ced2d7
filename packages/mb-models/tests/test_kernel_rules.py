"""Settings that need a kernel of Transformer Engine or Apex: the rules reject those that Megatron Core fails on."""

import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mb_host

mb_host.install()  # before megatron is imported

import megatron.core  # noqa: E402
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax  # noqa: E402
from megatron.core.models.backends import LocalSpecProvider  # noqa: E402
from megatron.core.models.common.language_module.language_module import LanguageModule  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.enums import AttnBackend, AttnMaskType  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.torch_norm import WrappedTorchNorm  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from mb_models import MambaModelConfig, T5ModelConfig  # noqa: E402
from mb_models.config import GPTModelConfig  # noqa: E402
from mb_models.rules import kernels as kernel_rules  # noqa: E402
from mb_models.rules.cuda_graphs import RULES as GRAPH_RULES  # noqa: E402
from mb_models.rules.kernels import KERNEL_MODULES, kernel_facts  # noqa: E402
from mb_models.training.gpu_only import GPU_ONLY  # noqa: E402

BY_ID = {rule.id: rule for rule in (*kernel_rules.RULES, *GRAPH_RULES)}
SHAPE = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4}


def message(number, **values):
    """Return the message of a rule for its failing example with some values changed."""
    rule = BY_ID[number]
    example = {**rule.fails, **{path: value for path, value in values.items() if path in rule.fields}}
    assert len(values) == len([path for path in values if path in rule.fields])
    return rule.message(example)


@pytest.mark.parametrize("number", ["KN02a", "KN02b"])
def test_megatrons_configuration_rejects_fusions_without_transformer_engine(number):
    switch = BY_ID[number].fields[0].removeprefix("model.")
    with pytest.raises(ValueError, match="install TE"):
        TransformerConfig(**SHAPE, **{switch: True})


def test_megatrons_router_rejects_its_fusion_without_transformer_engine():
    with pytest.raises(ValueError, match="install TE"):
        moe_utils.topk_routing_with_score_function(torch.zeros(4, 4), 2, fused=True)


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        ("KN06", {"persist_layer_norm": True}),
        ("KN07", {"sequence_parallel": True, "tensor_model_parallel_size": 2}),
        ("KN12", {"memory_efficient_layer_norm": True}),
    ],
)
def test_megatrons_torch_norm_rejects_what_the_rule_does(number, settings):
    config = TransformerConfig(**SHAPE, **settings, normalization="RMSNorm")
    with pytest.raises(AssertionError, match="not supported by torch LayerNorm"):
        WrappedTorchNorm(config, 32)
    changed = {"model.transformer": settings, "model.normalization": "RMSNorm"} if number == "KN12" else {}
    assert message(number, **changed)


def test_megatrons_norm_without_apex_is_torchs():
    assert LocalSpecProvider().layer_norm(rms_norm=False) is WrappedTorchNorm
    norms = {"model.transformer_impl": "local", "facts.cpu": False}
    for apex, normalization, torch_norm in (
        (True, "LayerNorm", False),
        (True, "RMSNorm", True),
        (False, "LayerNorm", True),
    ):
        given = {**norms, "facts.apex_installed": apex, "model.normalization": normalization}
        assert bool(message("KN06", **given)) is torch_norm


def test_megatrons_own_attention_rejects_context_parallelism():
    config = TransformerConfig(**SHAPE, context_parallel_size=2)
    with pytest.raises(AssertionError, match="only supported by TEDotProductAttention"):
        DotProductAttention(config, 1, AttnMaskType.causal, "self")
    assert message("KN09") == "is 2 with transformer_impl=local"


def test_megatrons_own_attention_imports_the_fused_softmax_in_the_first_step():
    softmax = FusedScaleMaskSoftmax(False, True, AttnMaskType.causal, True, None, True, None)
    with pytest.raises(ModuleNotFoundError, match="scaled_masked_softmax_cuda"):
        softmax(torch.zeros(2, 4, 32, 32, dtype=torch.bfloat16), None)
    assert "scaled_masked_softmax_cuda" in message("KN05")


def sources():
    """Return Megatron Core's training code, file by file."""
    root = Path(megatron.core.__path__[0])
    skipped = ("inference", "export", "resharding")
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] not in skipped:
            yield path.read_text(encoding="utf-8")


FALLS_BACK = {"apex.normalization", "apex.contrib.layer_norm", "apex.optimizers", "apex.multi_tensor_apply"}
"""Parts of Apex for which Megatron Core has a substitute."""
FALLS_BACK |= {"amp_C", "apex.contrib.nccl_allocator"}


def test_every_module_of_apex_that_megatron_imports_is_a_fact_or_has_a_substitute():
    family = r"apex[.\w]*|amp_C|fused_weight_gradient_mlp_cuda|fused_layer_norm_cuda|scaled_\w+_cuda"
    pattern = re.compile(rf"^\s*(?:from|import) ({family})\b", flags=re.MULTILINE)
    found = {name for text in sources() for name in pattern.findall(text)}
    known = {module for modules in KERNEL_MODULES.values() for module in modules}
    assert known <= found
    others = {name for name in found - known if not any(name.startswith(part) for part in FALLS_BACK)}
    assert others == set()


def test_facts_are_those_of_all_modules_of_a_kernel():
    there = {"apex", "scaled_masked_softmax_cuda"}
    assert kernel_facts(find=lambda name: name if name in there else None) == {
        "apex_installed": True,
        "fused_weight_gradient_installed": False,
        "fused_softmax_installed": False,
    }
    assert set(kernel_facts()) == set(KERNEL_MODULES)


@pytest.mark.parametrize("rule", kernel_rules.FALLBACKS, ids=lambda rule: rule.id)
def test_a_fallback_is_accepted_and_equals_the_replacement_without_a_gpu(rule):
    example = {**rule.fails, **rule.fallback}
    assert rule.message(example) is None
    for path, value in rule.fallback.items():
        name = path.removeprefix("model.")
        if name in GPU_ONLY:
            assert value == GPU_ONLY[name]


@pytest.mark.parametrize("rule", [rule for rule in kernel_rules.RULES if "facts.cpu" in rule.fields])
def test_no_rule_applies_without_a_gpu(rule):
    example = {**rule.fails, "facts.cpu": True}
    assert rule.message(example) is None


FASTER_ONLY = {
    "defer_embedding_wgrad_compute",  # needs gradient_accumulation_fusion: KN04
    "delay_wgrad_compute",  # a rule of mb-overlap
    "fine_grained_activation_offloading",  # rule V148
    "fused_residual_rmsnorm",  # rule G06
    "mla_down_proj_fusion",  # latent attention has no local layers on a GPU
    "overlap_moe_expert_parallel_comm",  # a schedule, which needs no module
    "cuda_graph_impl",  # rule V152c
}
"""GPU-only settings with rules elsewhere."""


def test_every_gpu_only_setting_has_a_rule():
    read = {path for rule in kernel_rules.FALLBACKS for path in rule.fallback}
    assert {name for name in GPU_ONLY if f"model.{name}" not in read} == FASTER_ONLY


def test_every_rule_reads_fields_of_a_section():
    classes = (GPTModelConfig, MambaModelConfig, T5ModelConfig)
    names = {f"model.{name}" for cls in classes for name in cls.__dataclass_fields__}
    for rule in kernel_rules.RULES:
        assert {path for path in rule.fields if path.startswith("model.")} <= names


@pytest.mark.parametrize(
    ("values", "rejected"),
    [
        ({}, True),
        ({"model.moe_expert_capacity_factor": 1.0}, True),
        ({"model.moe_expert_capacity_factor": 1.0, "model.moe_pad_expert_input_to_capacity": True}, False),
        ({"model.num_moe_experts": None}, False),
        ({"model.cuda_graph_impl": "transformer_engine"}, False),
        ({"model.cuda_graph_impl": "local", "model.cuda_graph_modules": ["full_iteration"]}, True),
        (
            {
                "model.moe_token_dispatcher_type": "flex",
                "model.transformer": {"moe_expert_rank_capacity_factor": 1.0},
            },
            False,
        ),
        (
            {
                "model.moe_token_dispatcher_type": "allgather",
                "model.moe_expert_capacity_factor": 1.0,
                "model.moe_pad_expert_input_to_capacity": True,
            },
            True,
        ),
    ],
)
def test_a_full_iteration_graph_requires_experts_of_fixed_sizes(values, rejected):
    assert bool(message("G37", **values)) is rejected


@pytest.mark.parametrize(
    ("extra", "layers", "engine", "named"),
    [
        ({"cpu_offloading": True}, "local", False, "cpu_offloading"),
        ({"cpu_offloading": True}, "local", True, None),
        ({"use_transformer_engine_op_fuser": True}, "local", True, "use_transformer_engine_op_fuser"),
        ({"use_te_activation_func": False}, "local", True, None),
        ({"memory_efficient_layer_norm": True}, "transformer_engine", True, None),
    ],
)
def test_settings_of_the_transformer_field(extra, layers, engine, named):
    given = {"model.transformer": extra, "model.transformer_impl": layers, "facts.transformer_engine": engine}
    found = message("KN12", **given)
    assert found is None if named is None else found.startswith(f"{named} not available")


ATTENTION_VARIABLES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN", "NVTE_FLASH_ATTN_V2")


@pytest.mark.parametrize("backend", [member.name for member in AttnBackend])
@pytest.mark.parametrize("flash_version", [None, 2, 3])
def test_megatron_rejects_the_same_values_of_variables_for_an_attention_backend(
    backend, flash_version, monkeypatch
):
    config = SimpleNamespace(attention_backend=AttnBackend[backend], flash_attention_version=flash_version)
    for values in product((None, "0", "1"), repeat=len(ATTENTION_VARIABLES)):
        env = {name: value for name, value in zip(ATTENTION_VARIABLES, values, strict=True) if value}
        monkeypatch.setattr("os.environ", dict(env))
        try:
            LanguageModule._set_attention_backend(SimpleNamespace(config=config))
            rejected = False
        except AssertionError:
            rejected = True
        given = {
            "model.attention_backend": backend,
            "model.transformer": {"flash_attention_version": flash_version},
            "facts.env": env,
        }
        assert bool(message("KN13", **given)) is rejected, given
