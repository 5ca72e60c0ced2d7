"""Programs of Megatron-LM that do not train a model of this project, each with the reason."""

import re
from collections.abc import Sequence

from mb_config.megatron_lm.flag_table import MegatronFlagError

_GENERATION = "generates text; mb sample and mb lm-eval do so with a run"
_MODEL_OPT = "is part of ModelOpt (quantization, pruning, distillation), which has no counterpart"
_OTHER = {
    r"(.*/)?pretrain_bert\.py": "trains BERT, which has no counterpart; GPT, hybrids and T5 have one",
    r"(.*/)?(pretrain_(ict|retro|realm)|.*/retro/.*)\.py": "trains a retrieval model, which has no counterpart",
    r"(.*/)?pretrain_vision\w*\.py": "trains a vision model, which has no counterpart",
    r"(.*/)?pretrain_(vlm|mimo)\.py|.*multimodal/train\.py|.*mimo[/.]\w+(\.py)?": (
        "trains a vision-language model, whose modules have arguments of their own; see MimoModelConfig"
    ),
    r"(.*/)?train_rl\.py": "is reinforcement learning, which has no counterpart",
    r"(.*/)?(run_\w*text_generation\w*|text_generation\w*|generate\w*|\w*inference\w*)(\.py)?": _GENERATION,
    r"(.*/|.*\.)inference[./].*": _GENERATION,
    r"(.*/)?preprocess\w*\.py": "prepares data; mb data build does so",
    r"(.*/)?(checkpoint_inspector|combine_state_dicts|convert|pp_checkpoint_converter)\.py": (
        "converts checkpoints; mb import-hf and mb ckpt do so"
    ),
    r"(.*/)?tasks/.*\.py": "evaluates a model on a task; mb lm-eval does so",
    r".*modelopt/\w+\.py": _MODEL_OPT,
}
"""Expression for the path of a program -> what it does instead."""


def reject_program(program: str) -> None:
    """Reject a program of Megatron-LM that does not train a model of this project. Others pass, also unknown ones.

    Raises:
        MegatronFlagError: It is one of those programs.
    """
    for expression, reason in _OTHER.items():
        if re.fullmatch(expression, program):
            raise MegatronFlagError(
                f"{program}: {reason}. Pass a script that starts pretrain_gpt.py or the like."
            )


def reject_nemo(words: Sequence[str]) -> None:
    """Reject settings of NeMo, which the functional tests of Megatron-LM contain as well.

    Raises:
        MegatronFlagError: The first words are such settings.
    """
    if words and re.fullmatch(r"(trainer|model|data|log|optim)\.[\w.]+", words[0]):
        raise MegatronFlagError(f"{words[0]}: is a setting of NeMo, not an argument of Megatron-LM.")
