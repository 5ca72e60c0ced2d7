"""Export of adapters in the format of Hugging Face's peft: adapter_config.json and adapter_model.safetensors."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.errors import HuggingFaceError
from mb_models.hf.config_json import family_of_section
from mb_models.hf.export_plan import stored_tensors
from mb_models.hf.family import Section, TensorOrigin
from mb_models.hf.load import groups_of_chunks
from mb_models.hf.safetensors_files import write_tensors
from mb_models.hf.weight_tables import origin_of
from mb_models.peft.adapted_linear import adapted_weights, joined_pair, scale_of
from mb_models.peft.config import DoRA, LoRA
from mb_models.peft.hugging_face_experts import ExpertAdapters, below_layer, is_renamed, reject_dora

PREFIX = "base_model.model."
"""Prefix of the names of all tensors in that format."""

RENAMED = {"embed_out": "lm_head"}
"""Module of GPT-NeoX, as in files of weights -> its name in models since a transformers between 5.10 and 5.18."""

PARTS = {"qkv": ("q", "k", "v"), "glu": ("gate", "up")}
"""Form of a fused layer -> its adapters in canonical LoRA."""


def save_adapters(
    chunk: Any,
    folder: Path | str,
    *,
    section: LoRA,
    config: Section,
    pg_collection: ProcessGroupCollection | None = None,
    base: str = "",
    model_type: str | None = None,
    vocab_size: int | None = None,
) -> None:
    """Write the adapters of a complete model in the format of `peft.PeftModel.from_pretrained`.

    A pair of a layer that Megatron fuses becomes one pair for each of its parts, with the same A. Pairs of parts that
    are one tensor there become one pair of a larger rank. Experts are tensors of all experts of a layer
    (`target_parameters`), as in transformers from version 5. Not collective.

    Args:
        chunk: the model with adapters, built on one rank.
        folder: output folder, which is created.
        section: section of the adapters.
        config: section of the model.
        pg_collection: groups of one rank each; None: those that the model was built with.
        base: path of the base model, for adapter_config.json.
        model_type: family of the base model; None: the first that computes the same as the section.
        vocab_size: number of tokens, if the output layer has more rows for padding, which are not written; None: all
            rows.

    Raises:
        HuggingFaceError: the model is distributed over ranks, or experts have DoRA, which peft does not support.
    """
    groups = groups_of_chunks([chunk]) if pg_collection is None else pg_collection
    sizes = [group.size() for group in (groups.tp, groups.pp, groups.ep)]
    if sizes != [1, 1, 1]:
        raise HuggingFaceError(
            f"save_adapters: the model is distributed over {sizes} ranks (tensor, pipeline, expert). Load its "
            "checkpoint into a model on one rank."
        )
    family = family_of_section(config, model_type=model_type)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    modules: dict[str, None] = {}
    parameters: dict[str, None] = {}
    ranks: dict[str, tuple[int, float]] = {}
    experts = ExpertAdapters(section=section, config=config)
    for weight, layer in adapted_weights([chunk]):
        origin = origin_of(weight, family=family, layer=family.layer_of, expert=partial(add, 0), tied=False)
        name = weight.removesuffix(".weight")
        if ".experts." in name:
            experts.add(name, layer, origin)
            continue
        if "main" not in layer.adapter and origin.form not in PARTS:
            raise HuggingFaceError(
                f"{name}: adapters on single parts are not supported, because the layer has gates in a "
                f"{family.model_type}. Merge them, or export another model_type."
            )
        for tensor, every_row in adapter_tensors(layer, origin, config):
            per_token = origin.vocabulary and not tensor.endswith(".lora_A.weight")
            value = every_row[:vocab_size] if per_token else every_row
            tensors[tensor] = value
            path = tensor.split(".lora_")[0]
            module = path.rsplit(".", 1)[-1]
            if is_renamed(module, config=config):
                reject_dora(section, name)
                parameters[below_layer(f"{path}.weight")] = None
            else:
                modules[module] = None
            if module in RENAMED:  # peft passes over the name that its transformers does not have
                modules[RENAMED[module]] = None
                tensors[tensor.replace(module, RENAMED[module])] = value
            found, usual = (len(value), scale_of(layer)), (section.dim, section.alpha / section.dim)
            if tensor.endswith("lora_A.weight") and found != usual:
                ranks[module] = found
    tensors |= experts.tensors()
    stored = {f"{PREFIX}{name}": value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_tensors(stored, target / "adapter_model.safetensors")
    content = adapter_config(
        section,
        modules=list(modules),
        base=base,
        parameters=[*parameters, *experts.parameters()],
        ranks=ranks | experts.ranks(),
    )
    (target / "adapter_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def adapter_config(
    section: LoRA,
    *,
    modules: list[str],
    base: str,
    parameters: Sequence[str] = (),
    ranks: Mapping[str, tuple[int, float]] | None = None,
) -> dict[str, object]:
    """Return the content of adapter_config.json.

    Args:
        section: section of the adapters.
        modules: linear layers with adapters.
        base: path of the base model.
        parameters: tensors of all experts of a layer with adapters.
        ranks: layer or tensor -> rank of its adapters and factor of their product, if they are not those of the
            section; None: they are everywhere.
    """
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": section.dim,
        "lora_alpha": section.alpha,
        # peft has no dropout of tensors of experts; a loaded adapter is not trained
        "lora_dropout": section.dropout if section.dropout_position == "pre" and not parameters else 0.0,
        "target_modules": modules,
        "use_dora": isinstance(section, DoRA),
        "bias": "none",
        "inference_mode": True,
    }
    if parameters:
        content["target_parameters"] = list(parameters)
    if ranks:
        content["rank_pattern"] = {name: rank for name, (rank, _) in ranks.items()}
        content["alpha_pattern"] = {name: rank * scale for name, (rank, scale) in ranks.items()}
    return content


def adapter_tensors(layer: Any, origin: TensorOrigin, config: Section) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of one layer's adapters by their names in that format."""
    names = [tensor.removesuffix(".weight") for tensor in origin.tensors]
    if "main" not in layer.adapter and not origin.packed:
        adapted = [
            (name, part)
            for name, part in zip(names, PARTS[origin.form], strict=True)
            if part in layer.adapter
        ]
        names, pairs = [name for name, _ in adapted], [layer.adapter[part] for _, part in adapted]
        b_parts, a_parts = [pair.lora_b for pair in pairs], [pair.lora_a for pair in pairs]
    elif "main" not in layer.adapter:
        a_RI, b_OR = joined_pair(layer)
        a_parts, b_parts = [a_RI], [b_OR]
    else:
        fused_pair = layer.adapter["main"]
        b_parts = stored_tensors(fused_pair.lora_b, config, origin)
        a_parts = [fused_pair.lora_a] * len(b_parts)
    for name, a_RI, b_OR in zip(names, a_parts, b_parts, strict=True):
        yield f"{name}.lora_A.weight", a_RI
        yield f"{name}.lora_B.weight", b_OR
    if layer.magnitude is not None:
        for name, part in zip(names, stored_tensors(layer.magnitude, config, origin), strict=True):
            yield f"{name}.lora_magnitude_vector", part
