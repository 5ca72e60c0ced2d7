"""The ground of the other packages: rules on values, sections, types of values, secrets, paths, lazy names.

Files in the order in which a section is met: `sections` (base class), `value_types` (its values against its
annotations), `rules` and `rule_kinds` (conditions on several values), `secrets`, `paths` and `unusable_paths` (what is
printed and opened), `files` (what is replaced as a whole), `versions`, `file_names`, `json_rows`, `yaml_settings` and
`declared_sizes` (what is read from elsewhere), `batch_stages` (batch sizes of a run), `attention_masks`,
`megatron_flags` (flags of Megatron-LM by a table), `gpu_names`, `save_result` (what a checkpointer returns to a loop),
`lazy` (names of a package that are imported at their first use), `import_hook` (functions that are called around the
code of a module), `hydra_text` (values of overrides). Standard library only.

>>> from mb_schema import check
>>> from mb_schema.rule_kinds import in_range
>>> rule = in_range("T1", "train.steps", 1, why="a run has a step", fix="Set 1 or more.")
>>> print(check({"train": {"steps": 0}}, [rule])[0])
train.steps: must be at least 1 (steps=0), because a run has a step. Set 1 or more.
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_schema.errors import PackageError as PackageError
    from mb_schema.gpu_names import UnknownGpuError as UnknownGpuError
    from mb_schema.lazy import MissingExtraAttributeError as MissingExtraAttributeError
    from mb_schema.lazy import MissingExtraError as MissingExtraError
    from mb_schema.rules import Problem as Problem
    from mb_schema.rules import Rule as Rule
    from mb_schema.rules import RuleError as RuleError
    from mb_schema.rules import check as check
    from mb_schema.rules import explain as explain
    from mb_schema.rules import refuse as refuse
    from mb_schema.secrets import is_secret as is_secret
    from mb_schema.secrets import masked as masked
    from mb_schema.sections import StrictFields as StrictFields
    from mb_schema.sections import UnknownFieldError as UnknownFieldError
    from mb_schema.value_types import FieldTypeError as FieldTypeError

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
