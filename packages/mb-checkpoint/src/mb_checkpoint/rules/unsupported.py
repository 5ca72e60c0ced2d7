"""Rules that reject options which this version does not support."""

from mb_schema.rule_kinds import shown, unsupported
from mb_schema.rules import Rule

_OPTIONS: tuple[tuple[int, str, object, object, str], ...] = (
    (19, "dist_ckpt_save_pre_mcore_014", False, True, "writes only the current layout"),
    (
        20,
        "distrib_optim_fully_reshardable_mem_efficient",
        False,
        True,
        "gathers through the process groups of the training",
    ),
    (25, "ckpt_convert_format", None, "torch_dist", "converts nothing"),
    (26, "ckpt_convert_save", None, "converted", "converts nothing"),
    (27, "ckpt_convert_update_legacy_dist_opt_format", False, True, "converts nothing"),
    (28, "save_params_interval", None, 10, "writes no dumps"),
    (29, "save_activations_interval", None, 10, "writes no dumps"),
    (30, "save_tokens_per_expert_interval", None, 10, "writes no dumps"),
    (31, "save_wgrads_interval", None, 10, "writes no dumps"),
    (32, "save_dgrads_interval", None, 10, "writes no dumps"),
    (34, "hf_trust_remote_code", False, True, "runs no code of a template"),
)
"""Number of the rule, name, neutral value, example of another value, and what the package does instead."""

UNSUPPORTED_OPTIONS: tuple[Rule, ...] = tuple(
    unsupported(
        f"CK{number}",
        f"checkpoint.{name}",
        neutral,
        fails=requested,
        why=f"mb-checkpoint {lacks}; ignoring the option would hide that",
        fix=f"Set checkpoint.{name}={shown(neutral)}.",
    )
    for number, name, neutral, requested, lacks in _OPTIONS
)
