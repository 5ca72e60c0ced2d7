"""Rules that reject options which this version does not support."""

from mb_checkpoint.rule import Rule


def unsupported_option(number: int, name: str, *, neutral: object, requested: object, lacks: str) -> Rule:
    """Return the rule that rejects any value of a field except the neutral one."""

    def test(value: object) -> str | None:
        return None if value == neutral else f"{name}={value!r} is not supported by this version"

    field = f"checkpoint.{name}"
    return Rule(
        id=f"CK{number}",
        fields=(field,),
        test=test,
        why=f"mb-checkpoint {lacks}; ignoring the option would hide that",
        fix=f"Set {field}={neutral!r}.",
        fails={field: requested},
        passes={field: neutral},
    )


UNSUPPORTED_OPTIONS = (
    unsupported_option(
        19,
        "dist_ckpt_save_pre_mcore_014",
        neutral=False,
        requested=True,
        lacks="writes only the current layout",
    ),
    unsupported_option(
        20,
        "distrib_optim_fully_reshardable_mem_efficient",
        neutral=False,
        requested=True,
        lacks="gathers through the process groups of the training",
    ),
    unsupported_option(
        22, "also_save_hf_checkpoint", neutral=False, requested=True, lacks="writes only Megatron's format"
    ),
    unsupported_option(
        23, "use_checkpoint_args", neutral=False, requested=True, lacks="reads no settings from checkpoints"
    ),
    unsupported_option(
        24,
        "use_mp_args_from_checkpoint_args",
        neutral=False,
        requested=True,
        lacks="reads no settings from checkpoints",
    ),
    unsupported_option(
        25, "ckpt_convert_format", neutral=None, requested="torch_dist", lacks="converts nothing"
    ),
    unsupported_option(
        26, "ckpt_convert_save", neutral=None, requested="converted", lacks="converts nothing"
    ),
    unsupported_option(
        27,
        "ckpt_convert_update_legacy_dist_opt_format",
        neutral=False,
        requested=True,
        lacks="converts nothing",
    ),
    unsupported_option(28, "save_params_interval", neutral=None, requested=10, lacks="writes no dumps"),
    unsupported_option(29, "save_activations_interval", neutral=None, requested=10, lacks="writes no dumps"),
    unsupported_option(
        30, "save_tokens_per_expert_interval", neutral=None, requested=10, lacks="writes no dumps"
    ),
    unsupported_option(31, "save_wgrads_interval", neutral=None, requested=10, lacks="writes no dumps"),
    unsupported_option(32, "save_dgrads_interval", neutral=None, requested=10, lacks="writes no dumps"),
    unsupported_option(
        33, "hf_source_path", neutral=None, requested="templates/llama", lacks="writes only Megatron's format"
    ),
    unsupported_option(
        34, "hf_trust_remote_code", neutral=False, requested=True, lacks="runs no code of a template"
    ),
    unsupported_option(
        35, "hf_distributed_save", neutral=False, requested=True, lacks="writes only Megatron's format"
    ),
    unsupported_option(
        36, "hf_save_every_n_ranks", neutral=1, requested=2, lacks="writes only Megatron's format"
    ),
)
