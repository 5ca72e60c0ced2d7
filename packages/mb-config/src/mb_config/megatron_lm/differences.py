"""Differences between the settings of a script and those that Megatron-LM has stored in a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mb_config.megatron_lm.conversion import MegatronConversion
from mb_config.megatron_lm.flag_table import read_flags
from mb_config.megatron_lm.namespace import from_megatron_args

_SET_BY_VALIDATION: Mapping[str, Any] = {
    "ddp.align_param_gather": False,
    "dataset.dataloader_type": "single",
    "checkpoint.async_strategy": "mcore",
    "checkpoint.stream_ckpt_dequant": False,
    "model.transformer.inference_cuda_graph_scope": "none",
}
"""Field -> value to which Megatron-LM sets its argument where others determine it."""


def differences(
    script: MegatronConversion, stored: Mapping[str, Any], *, name: str, without: Sequence[str] = ()
) -> Iterator[str]:
    """Yield a line for each field whose value is another one with the stored arguments than with those of a script.

    Values that Megatron-LM computes from others are no differences.

    Args:
        script: Conversion of the script.
        stored: Arguments in the checkpoint, validated by Megatron-LM.
        name: Name of the script for the lines.
        without: Fields that are not compared.
    """
    there = from_megatron_args(stored, ignore_unknown=True)
    computed = {**_SET_BY_VALIDATION, **_computed_sizes(stored)}
    defaults = {flag.path: flag.default for flag in read_flags().values() if flag.default is not None}
    ours, theirs = ({**found.defaults, **found.given} for found in (script, there))
    for path in sorted((ours.keys() | theirs.keys()) - {*without}):
        here, before = (side.get(path, defaults.get(path, "not set")) for side in (ours, theirs))
        if here != before and (path in ours or before != computed.get(path, ...)):
            yield f"{path}: {here} in {name}, {before} in the checkpoint"


def _computed_sizes(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that follow from the width of the model."""
    hidden = stored["hidden_size"]
    return {
        "model.ffn_hidden_size": 4 * hidden,
        "model.kv_channels": hidden // stored["num_attention_heads"],
    }
