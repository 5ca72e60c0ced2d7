"""A complete LLM trainer on Megatron Core, wired from micro-libraries.

>>> from mb_trainer import RECIPES, pretrain
>>> config = RECIPES["gpt_tiny"].build()
>>> config.train.train_iters = 20
>>> config.model.num_layers
4
>>> outcome = pretrain(config, out="runs/first")  # doctest: +SKIP
>>> outcome.reason  # doctest: +SKIP
'finished'
"""

from typing import TYPE_CHECKING

import mb_host as _mb_host
from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_trainer.config import ConfigContainer as ConfigContainer
    from mb_trainer.recipes import RECIPES as RECIPES
    from mb_trainer.recipes import Recipe as Recipe
    from mb_trainer.run.trainer import finetune as finetune
    from mb_trainer.run.trainer import pretrain as pretrain
    from mb_trainer.run.user_code import UserCode as UserCode

_mb_host.install_before_megatron()  # scripts and files of users may import megatron after this module, at their top

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
