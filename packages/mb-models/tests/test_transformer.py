from dataclasses import MISSING, fields, replace

import pytest
import torch
import torch.nn.functional as F

from mb_models import (
    GPTModelConfig,
    ModelConfigError,
    TransformerFields,
    gpu_only_settings,
    transformer_config,
)
from mb_models.gpt.transformer import (
    ACTIVATIONS,
    LATENT,
    NAMED_VALUES,
    SECTION_ONLY_FIELDS,
    YarnTransformerConfig,
)
from mb_models.gpt.variant_fields import YarnFields
from mb_schema.value_types import FieldTypeError

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def test_names_and_defaults_are_those_of_the_installed_megatron():
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    theirs = {item.name: item.default for item in fields(MLATransformerConfig) if item.name in LATENT}
    theirs |= {item.name: item.default for item in fields(TransformerConfig)}
    ours = {
        item.name: item.default for item in fields(TransformerFields) if item.name not in SECTION_ONLY_FIELDS
    }
    named = {name: NAMED_VALUES[name][ours[name]] for name in ours.keys() & NAMED_VALUES.keys() if ours[name]}
    differing = {name: value for name, value in (ours | named).items() if theirs[name] != value}
    assert differing == dict.fromkeys(("num_layers", "hidden_size", "num_attention_heads"), MISSING)


def test_yarn_has_the_fields_of_the_section():
    theirs = {item.name: item.default for item in fields(YarnTransformerConfig)}
    assert {item.name: theirs[item.name] for item in fields(YarnFields)} == {
        item.name: item.default for item in fields(YarnFields)
    }


def test_gpt_defaults_are_those_of_the_installed_megatron():
    from inspect import signature

    from megatron.core.models.gpt.gpt_model import GPTModel

    theirs = {name: item.default for name, item in signature(GPTModel.__init__).parameters.items()}
    ours = {item.name: item.default for item in fields(GPTModelConfig) if item.name in theirs}
    ours.pop("vocab_size")
    assert len(ours) == 9
    assert ours == {name: theirs[name] for name in ours}


def test_names_are_resolved_to_dtypes_functions_and_members(tiny):
    from megatron.core.transformer.enums import AttnBackend

    config = GPTModelConfig(**tiny, bf16=True, params_dtype="bfloat16", attention_backend="unfused")
    built = transformer_config(config, device=CPU)
    assert (built.params_dtype, built.pipeline_dtype, built.activation_func, built.attention_backend) == (
        torch.bfloat16,
        torch.bfloat16,
        F.silu,
        AttnBackend.unfused,
    )


def test_other_fields_are_passed_to_megatron_by_name(tiny):
    config = GPTModelConfig(**tiny, transformer={"glu_linear_offset": 0.5, "batch_p2p_sync": False})
    built = transformer_config(config, device=CPU)
    assert (built.glu_linear_offset, built.batch_p2p_sync) == (0.5, False)


def test_the_section_is_not_modified(tiny):
    config = GPTModelConfig(**tiny, apply_rope_fusion=True)
    before = replace(config)
    transformer_config(config, device=CPU)
    assert config == before


def test_one_virtual_stage_is_none(tiny):
    config = GPTModelConfig(**tiny, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=1)
    assert transformer_config(config, device=CPU).virtual_pipeline_model_parallel_size is None


def test_gpu_only_settings_are_replaced_without_a_gpu_and_listed(tiny):
    settings = {"gradient_accumulation_fusion": True, "apply_rope_fusion": True, "cuda_graph_impl": "local"}
    config = GPTModelConfig(**{**tiny, "transformer_impl": "transformer_engine"}, **settings)
    built = transformer_config(config, device=CPU)
    replaced = gpu_only_settings(config)
    assert replaced == {
        "apply_rope_fusion": False,
        "cuda_graph_impl": "none",
        "gradient_accumulation_fusion": False,
        "transformer_impl": "local",
    }
    assert {name: getattr(built, name) for name in replaced} == replaced


def test_kernels_of_a_gpu_are_off_without_one(tiny):
    kernels = dict.fromkeys(("fused_single_qkv_rope", "use_te_activation_func", "cpu_offloading"), True)
    config = GPTModelConfig(**tiny, transformer={**kernels, "glu_linear_offset": 1.0})
    built = transformer_config(config, device=CPU)
    assert [getattr(built, name) for name in kernels] == [False] * 3
    assert built.glu_linear_offset == 1.0
    assert config.transformer["cpu_offloading"]


def test_settings_that_only_megatron_rejects_are_an_error_of_the_section(tiny):
    config = GPTModelConfig(**tiny, transformer={"moe_router_padding_for_quantization": True})
    with pytest.raises(
        ModelConfigError,
        match=r"^model: Megatron Core rejects .*: fp8/fp4 must be specified .*[^.]\. Change the fields",
    ):
        transformer_config(config, device=CPU)


def test_the_same_settings_are_kept_on_a_gpu(tiny):
    config = GPTModelConfig(**tiny, gradient_accumulation_fusion=True)
    assert transformer_config(config, device=CUDA).gradient_accumulation_fusion


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_query_groups": 3}, "cannot be divided equally over 3 query groups"),
        ({"qk_clip": True}, "local layers ignore qk_clip"),
        ({"activation_func": "swish"}, "model.activation_func: expected one of gelu, .*, not 'swish'"),
        ({"params_dtype": "fp32"}, "model.params_dtype: expected one of float32, .*, not 'fp32'"),
        (
            {"transformer": {"glu_linear_ofset": 1.0}},
            "model.transformer.glu_linear_ofset: no such field.*Nearest: glu_linear_offset",
        ),
        (
            {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
            "exchange would mix up microbatches",
        ),
    ],
)
def test_invalid_sections_are_rejected(tiny, settings, message):
    with pytest.raises((ModelConfigError, FieldTypeError), match=message):
        transformer_config(GPTModelConfig(**{**tiny, **settings}), device=CPU)


def test_a_switch_that_local_layers_ignore_is_rejected_without_a_gpu(tiny):
    config = GPTModelConfig(**{**tiny, "transformer_impl": "transformer_engine"}, qk_l2_norm=True)
    with pytest.raises(ModelConfigError, match="local layers ignore qk_l2_norm"):
        transformer_config(config, device=CPU)


def test_all_problems_are_reported_at_once(tiny):
    config = GPTModelConfig(
        **{**tiny, "num_query_groups": 3, "seq_length": 64, "max_position_embeddings": 32}
    )
    with pytest.raises(ModelConfigError) as caught:
        transformer_config(config, device=CPU)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "[G04] model.max_position_embeddings",
        "[P04] model.num_query_groups",
    ]


def test_every_activation_name_of_the_section_is_known():
    from typing import get_args, get_type_hints

    assert set(get_args(get_type_hints(GPTModelConfig)["activation_func"])) == ACTIVATIONS.keys()


def test_quick_gelu_can_be_fused():
    """Megatron Core has two functions of this name, and compares with the one of its fused kernels."""
    from megatron.core.fusions import fused_bias_geglu

    section = GPTModelConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        add_bias_linear=False,
        activation_func="quick_gelu",
        gated_linear_unit=True,
        bias_activation_fusion=True,
    )
    assert transformer_config(section, device=CPU).activation_func is fused_bias_geglu.quick_gelu
