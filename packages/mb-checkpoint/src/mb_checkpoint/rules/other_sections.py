"""Rules that relate the section to the model and to the kind of sharding. Standard library only."""

from functools import partial

from mb_schema.rule_kinds import section_rule
from mb_schema.rules import Rule

checkpoint_rule = partial(section_rule, "checkpoint")


@checkpoint_rule(
    "V129",
    why="the configuration and the tokenizer of the exported model are copied from it",
    fix="Set checkpoint.hf_source_path.",
    fails={"also_save_hf_checkpoint": True},
    passes={"hf_source_path": "/models/llama"},
)
def _export_without_source(
    also_save_hf_checkpoint, hf_source_path, model__hf_model_id, tokenizer__tokenizer_model
):
    if not also_save_hf_checkpoint or hf_source_path or model__hf_model_id or tokenizer__tokenizer_model:
        return None
    return "is true, but no Hugging Face model is set"


@checkpoint_rule(
    "V130",
    why="this format stores the shards of Megatron-FSDP",
    fix="Set checkpoint.ckpt_format=torch_dist, or ddp.use_megatron_fsdp=true and dist.use_torch_fsdp2=false.",
    fails={"ckpt_format": "fsdp_dtensor", "save": "checkpoints"},
    passes={"ddp__use_megatron_fsdp": True},
)
def _format_of_other_sharding(
    ckpt_format, save, load, dist__use_torch_fsdp2, ddp__use_megatron_fsdp, dist__use_megatron_fsdp
):
    if ckpt_format != "fsdp_dtensor" or not (save or load):
        return None
    if not (ddp__use_megatron_fsdp or dist__use_megatron_fsdp):
        return "is fsdp_dtensor, but use_megatron_fsdp is false"
    return "is fsdp_dtensor, but use_torch_fsdp2 is true" if dist__use_torch_fsdp2 else None


@checkpoint_rule(
    "V175",
    why="other formats do not support its sharding",
    fix="Set checkpoint.ckpt_format=fsdp_dtensor.",
    fails={"ckpt_format": "torch_dist", "load": "checkpoints", "ddp__use_megatron_fsdp": True},
    passes={"ckpt_format": "fsdp_dtensor"},
)
def _format_without_shards(ckpt_format, save, load, ddp__use_megatron_fsdp, dist__use_megatron_fsdp):
    if not (ddp__use_megatron_fsdp or dist__use_megatron_fsdp) or not (save or load):
        return None
    return None if ckpt_format in (None, "fsdp_dtensor") else f"is {ckpt_format} under Megatron-FSDP"


RULES: tuple[Rule, ...] = (_export_without_source, _format_of_other_sharding, _format_without_shards)
