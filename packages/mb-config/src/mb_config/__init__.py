"""Typed configuration for Megatron trainers: sections, overrides with provenance, preflight rules.

>>> from mb_config import OptimizerConfig, RULES, SchedulerConfig, TrainingConfig, check
>>> sections = {
...     "train": TrainingConfig(train_iters=100, global_batch_size=8, micro_batch_size=3),
...     "optimizer": OptimizerConfig(lr=1e-3, min_lr=1e-4),
...     "scheduler": SchedulerConfig(lr_warmup_iters=10),
...     "model": {"tensor_model_parallel_size": 1},
... }
>>> for problem in check(sections, RULES, facts={"world_size": 2}):
...     print(problem.id, problem.message)
V242 8 is not a multiple of 6 (micro batch 3 x data parallel 2)
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_config.container.codec import from_dict as from_dict
    from mb_config.container.codec import to_dict as to_dict
    from mb_config.container.container import ConfigContainer as ConfigContainer
    from mb_config.container.display import show as show
    from mb_config.container.non_defaults import non_default_values as non_default_values
    from mb_config.container.section import Section as Section
    from mb_config.container.section import given_fields as given_fields
    from mb_config.errors import ConfigFileError as ConfigFileError
    from mb_config.errors import ConfigFileNotFoundError as ConfigFileNotFoundError
    from mb_config.errors import ConfigKeyError as ConfigKeyError
    from mb_config.errors import ConfigReadError as ConfigReadError
    from mb_config.errors import ManyReadErrors as ManyReadErrors
    from mb_config.errors import MaskedValueError as MaskedValueError
    from mb_config.errors import MissingKeyError as MissingKeyError
    from mb_config.errors import OverrideError as OverrideError
    from mb_config.errors import TargetError as TargetError
    from mb_config.errors import UnknownKeyError as UnknownKeyError
    from mb_config.errors import WrongTypeError as WrongTypeError
    from mb_config.mcore import build_scheduler as build_scheduler
    from mb_config.mcore import to_megatron as to_megatron
    from mb_config.megatron_defaults import MegatronField as MegatronField
    from mb_config.megatron_defaults import UnknownMegatronError as UnknownMegatronError
    from mb_config.megatron_defaults import megatron_fields as megatron_fields
    from mb_config.megatron_lm.conversion import MegatronConversion as MegatronConversion
    from mb_config.megatron_lm.namespace import from_megatron_args as from_megatron_args
    from mb_config.overrides.apply import apply_overrides as apply_overrides
    from mb_config.overrides.apply import apply_yaml as apply_yaml
    from mb_config.overrides.provenance import Provenance as Provenance
    from mb_config.overrides.saved_settings import SavedSettings as SavedSettings
    from mb_config.overrides.saved_settings import difference_lines as difference_lines
    from mb_config.overrides.saved_settings import settings_differences as settings_differences
    from mb_config.overrides.variations import Variation as Variation
    from mb_config.overrides.variations import read_variations as read_variations
    from mb_config.overrides.variations import split_yaml as split_yaml
    from mb_config.overrides.variations import to_axes as to_axes
    from mb_config.preflight.module_layouts import smallest_world as smallest_world
    from mb_config.preflight.problems import ConfigError as ConfigError
    from mb_config.preflight.problems import check as check
    from mb_config.resolve.precision_recipes import UnknownPrecisionError as UnknownPrecisionError
    from mb_config.resolve.precision_recipes import get_mixed_precision_config as get_mixed_precision_config
    from mb_config.resolve.resolver import Change as Change
    from mb_config.resolve.resolver import mimo_runtime_config_update as mimo_runtime_config_update
    from mb_config.resolve.resolver import runtime_config_update as runtime_config_update
    from mb_config.rules import RULES as RULES
    from mb_config.schedules.learning_rate import SchedulerSteps as SchedulerSteps
    from mb_config.schedules.learning_rate import scheduler_steps as scheduler_steps
    from mb_config.sections.ddp import DistributedDataParallelConfig as DistributedDataParallelConfig
    from mb_config.sections.optimizer import OptimizerConfig as OptimizerConfig
    from mb_config.sections.optimizer_overrides import (
        OptimizerConfigOverrideProvider as OptimizerConfigOverrideProvider,
    )
    from mb_config.sections.optimizer_overrides import (
        OptimizerConfigOverrideProviderContext as OptimizerConfigOverrideProviderContext,
    )
    from mb_config.sections.precision import MixedPrecisionConfig as MixedPrecisionConfig
    from mb_config.sections.scheduler import SchedulerConfig as SchedulerConfig
    from mb_config.sections.startup import DistributedInitConfig as DistributedInitConfig
    from mb_config.sections.startup import RNGConfig as RNGConfig
    from mb_config.sections.training import TrainingConfig as TrainingConfig
    from mb_config.sections.training import ValidationConfig as ValidationConfig
    from mb_schema.gpu_names import UnknownGpuError as UnknownGpuError
    from mb_schema.rules import Problem as Problem
    from mb_schema.rules import Rule as Rule
    from mb_schema.rules import explain as explain

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
