"""Random small models of every family, what check answers to them, and whether Megatron Core builds and runs them."""

import math
import os
import random
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from io import StringIO
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest import mock

import torch
from any_rank import DENSE, EP, ETP, MLA, MODERN, MOE, PP, SHARED, TP, VP
from megatron.core import parallel_state, tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from torch.testing._internal.distributed.fake_pg import FakeStore

import mb_config
import mb_models.gpt.transformer
import mb_models.hybrid.provider
import mb_models.rules
import mb_models.t5.provider
from mb_config import (
    ConfigContainer,
    ConfigError,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    OptimizerConfig,
    SchedulerConfig,
    TrainingConfig,
    runtime_config_update,
)
from mb_host.megatron.families import HOST_LAYERS
from mb_models import GPTModelConfig, MambaModelConfig, MimoModelConfig, T5ModelConfig
from mb_models.families import family_of
from mb_trainer.run.rules import RULES

CP = "context_parallel_size"
CPU = torch.device("cpu")
TOKENIZER_ENTRIES = 61
"""Entries of the tokenizer, by which an unset vocabulary is sized."""

SMALL = {"hidden_size": 32, "ffn_hidden_size": 48, "vocab_size": 64, "seq_length": 16, "num_layers": 4}
STATE = {
    "activation_func": "silu",
    "mamba_state_dim": 8,
    "mamba_head_dim": 8,
    "mamba_num_groups": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
VISION = {
    "vision_num_layers": 1,
    "vision_hidden_size": 16,
    "vision_num_attention_heads": 4,
    "image_size": 8,
    "patch_size": 4,
    "calculate_per_token_loss": True,
}
T5 = {
    **DENSE,
    **SMALL,
    "position_embedding_type": "learned_absolute",
    "decoder_seq_length": 8,
    "num_layers": 2,
}

STARTS: dict[str, tuple[type, dict[str, Any]]] = {
    "dense": (GPTModelConfig, {**DENSE, **SMALL}),
    "grouped": (GPTModelConfig, {**MODERN, **SMALL}),
    "experts": (GPTModelConfig, {**MOE, **SMALL}),
    "shared experts": (GPTModelConfig, {**SHARED, **SMALL}),
    "latent": (GPTModelConfig, {**MLA, **SMALL}),
    "latent experts": (GPTModelConfig, {**SHARED, **MLA, **SMALL}),
    "further tokens": (GPTModelConfig, {**MODERN, **SMALL, "mtp_num_layers": 1}),
    "hybrid": (
        MambaModelConfig,
        {**MODERN, **SMALL, **STATE, "hybrid_layer_pattern": "MG*-", "num_query_groups": 4},
    ),
    "hybrid experts": (
        MambaModelConfig,
        {**MOE, **SMALL, **STATE, "hybrid_layer_pattern": "M*-E/*-", "num_query_groups": 4},
    ),
    "t5": (T5ModelConfig, T5),
    "mimo": (MimoModelConfig, {**MODERN, **SMALL, **VISION}),
}
"""Valid small models: family -> section and its fields."""

WIDTHS: dict[str, list[Any]] = {
    "num_layers": [1, 2, 3, 4, 6],
    "hidden_size": [24, 31, 32, 33, 36, 64],
    "num_attention_heads": [1, 2, 3, 4, 6, 8],
    "num_query_groups": [None, 1, 2, 3, 4, 6, 8],
    "kv_channels": [None, 5, 7, 8, 16],
    "ffn_hidden_size": [None, 47, 48, 49, 50, 51],
    "vocab_size": [None, 63, 64, 65, 66],
    "make_vocab_size_divisible_by": [1, 3, 8],
    "seq_length": [15, 16, 17, 18, 24],
    "max_position_embeddings": [None, 17, 24],
    "window_size": [None, (4, 0)],
    "moe_ffn_hidden_size": [None, 15, 16, 17, 18],
    "moe_shared_expert_intermediate_size": [None, 15, 16, 17, 18],
    "num_moe_experts": [None, 2, 3, 4, 6, 8],
    "moe_layer_freq": [1, 2, [0, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1]],
    "moe_router_topk": [1, 2, 3],
    "moe_router_num_groups": [None, 2, 3],
    "moe_router_group_topk": [None, 1, 2],
    "moe_router_topk_scaling_factor": [None, 2.5],
    "q_lora_rank": [None, 7, 8, 9],
    "kv_lora_rank": [7, 8, 9],
    "qk_head_dim": [7, 8, 12],
    "qk_pos_emb_head_dim": [3, 4, 8],
    "v_head_dim": [7, 8],
    "mtp_num_layers": [None, 1, 2],
    "mamba_state_dim": [7, 8, 16],
    "mamba_head_dim": [6, 7, 8, 16],
    "mamba_num_groups": [1, 2, 3, 4],
    "mamba_num_heads": [None, 4, 6, 8, 12],
    "linear_conv_kernel_dim": [1, 2, 3, 4],
    "linear_key_head_dim": [7, 8],
    "linear_value_head_dim": [7, 8, 16],
    "linear_num_key_heads": [1, 2, 3, 4],
    "linear_num_value_heads": [2, 3, 4, 6, 8],
    "hybrid_layer_pattern": ["MM**", "M*|-M", "MG*E", "G-*-/*", "M*-M/*-/*-", "----", "**-G", "E*E-"],
    "encoder_num_layers": [None, 1, 2],
    "decoder_seq_length": [7, 8, 9],
    "vision_num_layers": [1, 2],
    "vision_hidden_size": [15, 16, 17, 18],
    "vision_num_attention_heads": [1, 2, 3, 4],
    "vision_ffn_hidden_size": [None, 31, 32],
    "projector_hidden_size": [None, 31, 32, 33],
    "image_size": [8, 9, 12],
    "patch_size": [2, 3, 4],
    "num_layers_in_first_pipeline_stage": [None, 1, 2, 3],
    "num_layers_in_last_pipeline_stage": [None, 1, 2, 3],
    "pipeline_model_parallel_layout": [None, "Ett|ttL", "Et|tttL", "E|tttt|L", "Et|t|t|tL", "Ett|ttmL"],
    "microbatch_group_size_per_vp_stage": [None, 2, 3],
    "rotary_percent": [1.0, 0.5, 0.3],
    "seq_len_interpolation_factor": [None, 2.0],
    "rotary_base": [10000, 500],
    "cp_comm_type": [None, "p2p", "a2a"],
    "recompute_num_layers": [None, 1, 2, 3],
    "recompute_modules": [None, ["core_attn"], ["mlp"], ["moe"], ["layernorm"], ["mla_up_proj"], ["moe_act"]],
    "moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"],
    "moe_aux_loss_coeff": [0.0, 0.1],
    "moe_expert_capacity_factor": [None, 1.0],
    "wgrad_deferral_limit": [0, 2],
    "position_embedding_type": ["learned_absolute", "rope", "mrope", "yarn", "none"],
}
"""Values that widths and layouts are given: those that ranks share, and neighbours of them."""

FIXED = {
    "transformer",
    "tp_comm_overlap_cfg",
    "transformer_impl",
    "language_rank_offset",
    "vision_tensor_model_parallel_size",
    "image_token_id",
    "hierarchical_context_parallel_sizes",
    TP,
    PP,
    VP,
    CP,
    EP,
    ETP,
    "sequence_parallel",
    "use_cpu_initialization",
}
"""Fields that are not drawn one by one: layouts are drawn as a unit, others name objects of other libraries."""

BY_TYPE: dict[Any, list[Any]] = {
    type(None): [None],
    bool: [True, False],
    int: [0, 1, 2, 3],
    float: [0.0, 0.5, 1.0],
}


def values_of(annotation: Any) -> list[Any]:
    """Return some values of a type, or none for an unknown type."""
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [value for option in get_args(annotation) for value in values_of(option)]
    return list(get_args(annotation)) if get_origin(annotation) is Literal else BY_TYPE.get(annotation, [])


def pool(section: type, *, widths_only: bool) -> dict[str, list[Any]]:
    """Values for each field of a section."""
    found = {}
    for name, kind in get_type_hints(section).items():
        values = WIDTHS.get(name, [] if widths_only else values_of(kind))
        if get_origin(kind) is Literal:
            values = [value for value in values if value in get_args(kind)]
        if name not in FIXED and values:
            found[name] = values
    return found


def draw_layout(numbers: random.Random) -> dict[str, Any]:
    """Draw parallel sizes, most of them 1."""
    tp = numbers.choice([1, 1, 1, 2, 2, 3, 4])
    pp = numbers.choice([1, 1, 1, 2, 2, 3, 4])
    layout: dict[str, Any] = {TP: tp, PP: pp, VP: None}
    if pp > 1 and numbers.random() < 0.3:
        layout |= {VP: numbers.choice([1, 2]), "overlap_p2p_comm": True, "batch_p2p_comm": False}
    layout[CP] = numbers.choice([1, 1, 1, 1, 2])
    layout[EP] = numbers.choice([1, 1, 1, 2, 4])
    layout[ETP] = numbers.choice([None, None, None, 1, 2])
    layout["sequence_parallel"] = tp > 1 and numbers.random() < 0.8
    return layout


def draw(numbers: random.Random) -> tuple[str, dict[str, Any]]:
    """Draw a family and the fields of a section of it, most of them valid."""
    name = numbers.choice([*STARTS])
    section, start = STARTS[name]
    values = {**deepcopy(start), **(draw_layout(numbers) if numbers.random() < 0.75 else {})}
    if section in (T5ModelConfig, MimoModelConfig) and numbers.random() < 0.7:
        values |= {PP: 1, VP: None, EP: 1, ETP: None}
        values |= {CP: 1} if section is T5ModelConfig else {}
    if not values.get("num_moe_experts") and numbers.random() < 0.8:
        values |= {EP: 1, ETP: None}
    for choices, most in ((pool(section, widths_only=True), 3), (pool(section, widths_only=False), 2)):
        for field in numbers.sample(sorted(choices), numbers.randint(0, most)):
            values[field] = numbers.choice(choices[field])
    if section is MambaModelConfig and numbers.random() < 0.9:
        values["num_layers"] = len(values["hybrid_layer_pattern"].split("/")[0].replace("|", ""))
        experts = 4 if "E" in values["hybrid_layer_pattern"] else None
        values["num_moe_experts"] = experts
        if not experts:
            values |= {"moe_ffn_hidden_size": None, "moe_shared_expert_intermediate_size": None}
    return name, values


def world_of(values: Mapping[str, Any]) -> int:
    """Return the smallest number of ranks that holds the dense part and the experts."""
    size = {name: max(1, values.get(name) or 1) for name in (TP, PP, CP, EP)}
    etp = values.get(ETP) or size[TP]
    return math.lcm(size[TP] * size[CP] * size[PP], size[EP] * etp * size[PP])


def configured(name: str, values: Mapping[str, Any]) -> ConfigContainer:
    """Return a configuration around the model."""
    return ConfigContainer(
        train=TrainingConfig(train_iters=10, global_batch_size=96, micro_batch_size=1),
        model=STARTS[name][0](**deepcopy(dict(values))),
        optimizer=OptimizerConfig(lr=1e-3),
        scheduler=SchedulerConfig(lr_warmup_iters=1),
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True),
        dist=DistributedInitConfig(distributed_backend="gloo"),
        dataset=None,
        logger=None,
        tokenizer=None,
        checkpoint=None,
    )


def facts_of(world: int) -> dict[str, Any]:
    """A machine without a GPU and without Transformer Engine."""
    return {
        "world_size": world,
        "env": {},
        "gpu": None,
        "cpu": True,
        "transformer_engine": False,
        "einops_installed": True,
    }


def checked(config: ConfigContainer, *, world: int) -> tuple[list[str], ConfigContainer]:
    """Return what check rejects, as written and resolved, and the resolved configuration."""
    facts = facts_of(world)
    found = mb_config.check(config.sections(), RULES, facts=facts)
    resolved = deepcopy(config)
    try:
        runtime_config_update(resolved, world_size=world, facts=facts)
        rules = (*RULES, mb_models.rules.INTERLEAVING)
        found += mb_config.check(resolved.sections(), rules, facts={**facts, "resolved": True})
    except ConfigError as error:
        found += error.problems
    return [f"{problem.id} {problem.message}" for problem in found if problem.severity == "error"], resolved


@contextmanager
def one_rank(rank: int, world: int, model: Any) -> Iterator[ProcessGroupCollection]:
    """Be one rank of many in this process; its groups have the right sizes and send nothing."""
    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            **{name: getattr(model, name) for name in (TP, PP, VP, CP, EP, ETP)},
            create_gloo_process_groups=False,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        yield ProcessGroupCollection.use_mpu_process_groups()
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


@contextmanager
def without_own_rules() -> Iterator[None]:
    """Let providers build what rules reject."""

    def accept(*_: object, **__: object) -> None:
        return None

    with (
        mock.patch.object(mb_models.gpt.transformer, "reject_violations", accept),
        mock.patch.object(mb_models.hybrid.provider, "reject_violations", accept),
        mock.patch.object(mb_models.t5.provider, "reject_violations", accept),
    ):
        yield


def built(model: Any, *, world: int) -> str | None:
    """Build the first rank of each pipeline stage, and run a step of a model on one rank; return what went wrong."""
    family = family_of(model)
    stages = max(1, model.pipeline_model_parallel_size)
    try:
        with (
            without_own_rules(),
            mock.patch.dict(os.environ),
            redirect_stdout(StringIO()),
            redirect_stderr(StringIO()),
        ):
            for rank in range(0, world, max(1, world // stages)):
                with one_rank(rank, world, model) as groups:
                    provider = family.provider(
                        model,
                        layer_spec=HOST_LAYERS[family.name],
                        device=CPU,
                        tokenizer_vocab_size=TOKENIZER_ENTRIES,
                    )
                    chunks = provider.provide_chunks(groups)
                    if world == 1:
                        stepped(model, chunks[0], family.forward_step())
    except Exception as error:  # noqa: BLE001 - Megatron refuses in many ways
        return failure(error)
    return None


def failure(error: Exception) -> str:
    """Return the error with the function that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "?" if trace is None else f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
    return f"{where}: {type(error).__name__}: {str(error).strip()[:300]}"


def stepped(model: Any, chunk: Any, forward_step: Any) -> None:
    """Run forward and backward on two random sequences."""
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(model.params_dtype)
    if dtype is not None:
        chunk.to(dtype)
    rows, length = 2, model.seq_length
    tokens = torch.randint(0, 60, (rows, length))
    batch = {
        "tokens": tokens,
        "labels": tokens.roll(-1, 1),
        "loss_mask": torch.ones(rows, length),
        "position_ids": torch.arange(length).expand(rows, length).contiguous(),
    }
    if isinstance(model, T5ModelConfig):
        written = tokens[:, :1].expand(rows, model.decoder_seq_length).contiguous()
        batch = {
            "text_enc": tokens,
            "enc_mask": torch.ones(rows, length, dtype=torch.long),
            "text_dec": written,
            "labels": written,
            "loss_mask": torch.ones(rows, model.decoder_seq_length),
        }
    if isinstance(model, MimoModelConfig):
        tokens[:, : model.image_tokens] = model.image_token_id
        batch["labels"] = batch["labels"].clamp(min=0)
        batch["images"] = torch.randn(rows, 3, model.image_size, model.image_size)
    output, loss = forward_step(iter([batch]), chunk)
    loss(output)[0].backward()


def numbered(seed: int) -> random.Random:
    """Return the random numbers of a seed."""
    return random.Random(seed)
