"""Wishes that this version does not carry out and therefore refuses."""

from mb_checkpoint.rule import Rule


def not_yet(number: int, name: str, *, neutral: object, asked: object, lacks: str) -> Rule:
    """Make the rule that refuses any value of a field but the one that asks for nothing."""

    def test(value: object) -> str | None:
        return None if value == neutral else f"{name}={value!r} is not carried out by this version"

    field = f"checkpoint.{name}"
    return Rule(
        id=f"CK{number}",
        fields=(field,),
        test=test,
        why=f"mb-checkpoint {lacks}; ignoring the wish would let a run rely on something that is not there",
        fix=f"Set {field}={neutral!r}.",
        fails={field: asked},
        passes={field: neutral},
    )


NOT_YET = (
    not_yet(19, "dist_ckpt_save_pre_mcore_014", neutral=False, asked=True, lacks="writes today's layout"),
    not_yet(
        20,
        "distrib_optim_fully_reshardable_mem_efficient",
        neutral=False,
        asked=True,
        lacks="gathers through the training's own groups",
    ),
    not_yet(22, "also_save_hf_checkpoint", neutral=False, asked=True, lacks="writes Megatron's form only"),
    not_yet(23, "use_checkpoint_args", neutral=False, asked=True, lacks="takes no settings from a file"),
    not_yet(24, "use_mp_args_from_checkpoint_args", neutral=False, asked=True, lacks="takes no settings"),
    not_yet(25, "ckpt_convert_format", neutral=None, asked="torch_dist", lacks="converts nothing"),
    not_yet(26, "ckpt_convert_save", neutral=None, asked="converted", lacks="converts nothing"),
    not_yet(
        27, "ckpt_convert_update_legacy_dist_opt_format", neutral=False, asked=True, lacks="converts nothing"
    ),
    not_yet(28, "save_params_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(29, "save_activations_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(30, "save_tokens_per_expert_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(31, "save_wgrads_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(32, "save_dgrads_interval", neutral=None, asked=10, lacks="writes no dumps"),
    not_yet(33, "hf_source_path", neutral=None, asked="templates/llama", lacks="writes Megatron's form only"),
    not_yet(34, "hf_trust_remote_code", neutral=False, asked=True, lacks="runs no code of a template"),
    not_yet(35, "hf_distributed_save", neutral=False, asked=True, lacks="writes Megatron's form only"),
    not_yet(36, "hf_save_every_n_ranks", neutral=1, asked=2, lacks="writes Megatron's form only"),
)
