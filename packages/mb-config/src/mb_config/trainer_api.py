"""What the trainer imports from mb_config beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_config.cli import app as app
    from mb_config.cli.check import print_check as print_check
    from mb_config.cli.check import print_config as print_config
    from mb_config.cli.examination import CommandInput as CommandInput
    from mb_config.cli.examination import Examination as Examination
    from mb_config.cli.examination import examine as examine
    from mb_config.cli.examination import machine_of_perf as machine_of_perf
    from mb_config.cli.import_args import assigned_variables as assigned_variables
    from mb_config.cli.import_args import omissions as omissions
    from mb_config.cli.import_args import read_source as read_source
    from mb_config.cli.import_args import render as render
    from mb_config.cli.listing import counted as counted
    from mb_config.cli.listing import message_of as message_of
    from mb_config.cli.message_text import MAX_MESSAGE_LENGTH as MAX_MESSAGE_LENGTH
    from mb_config.cli.message_text import truncate as truncate
    from mb_config.cli.options import ConfigFiles as ConfigFiles
    from mb_config.cli.options import Json as Json
    from mb_config.cli.options import MachineOptions as MachineOptions
    from mb_config.cli.options import OverridesWithDashes as OverridesWithDashes
    from mb_config.cli.options import Processes as Processes
    from mb_config.cli.options import ProcessOptions as ProcessOptions
    from mb_config.cli.options import RuleFilter as RuleFilter
    from mb_config.cli.options import ViewOptions as ViewOptions
    from mb_config.cli.options import add_import_option as add_import_option
    from mb_config.cli.options import target_machine as target_machine
    from mb_config.cli.rules import UnknownRuleError as UnknownRuleError
    from mb_config.cli.rules import print_explanation as print_explanation
    from mb_config.cli.rules import print_rules as print_rules
    from mb_config.container.container import world_size_of_environment as world_size_of_environment
    from mb_config.container.field_access import expand_home_in as expand_home_in
    from mb_config.container.field_access import set_field as set_field
    from mb_config.container.yaml_file import YamlFile as YamlFile
    from mb_config.container.yaml_file import dump_yaml as dump_yaml
    from mb_config.container.yaml_file import read_yaml as read_yaml
    from mb_config.mcore import to_dtype as to_dtype
    from mb_config.megatron_lm.arguments import megatron_arguments as megatron_arguments
    from mb_config.megatron_lm.conversion import convert_script as convert_script
    from mb_config.megatron_lm.differences import differences as differences
    from mb_config.overrides.apply import SECTION_FACTORIES as SECTION_FACTORIES
    from mb_config.overrides.apply import merge_yaml as merge_yaml
    from mb_config.overrides.base_recipe import BASE as BASE
    from mb_config.overrides.base_recipe import base_of as base_of
    from mb_config.overrides.base_recipe import without_base as without_base
    from mb_config.overrides.hydra_grammar import parse_override as parse_override
    from mb_config.overrides.provenance import remember_resolved as remember_resolved
    from mb_config.overrides.registration import ClassTable as ClassTable
    from mb_config.overrides.registration import Recipe as Recipe
    from mb_config.overrides.registration import RecipeTable as RecipeTable
    from mb_config.overrides.registration import Registry as Registry
    from mb_config.overrides.registration import recipe as recipe
    from mb_config.overrides.registration import recipes_in as recipes_in
    from mb_config.overrides.request import ConfigRequest as ConfigRequest
    from mb_config.overrides.request import RecipeReader as RecipeReader
    from mb_config.overrides.saved_settings import SavedSettingsError as SavedSettingsError
    from mb_config.overrides.saved_settings import changed_settings_message as changed_settings_message
    from mb_config.overrides.stored_sections import stored_sections as stored_sections
    from mb_config.overrides.stored_sections import stored_tokenizer as stored_tokenizer
    from mb_config.overrides.unattended import unattended_overrides as unattended_overrides
    from mb_config.perf.candidates import tunable as tunable
    from mb_config.perf.names import AUTO as AUTO
    from mb_config.perf.names import PerfName as PerfName
    from mb_config.perf.names import gpu_of as gpu_of
    from mb_config.perf.resolve_perf import perf_target as perf_target
    from mb_config.preflight.facts import ALLOW_OOM as ALLOW_OOM
    from mb_config.preflight.facts import TargetMachine as TargetMachine
    from mb_config.preflight.facts import machine_facts as machine_facts
    from mb_config.preflight.facts import short_name_of_first as short_name_of_first
    from mb_config.preflight.module_layouts import WORLD_SIZE as WORLD_SIZE
    from mb_config.preflight.module_layouts import rules_per_point as rules_per_point
    from mb_config.preflight.problems import explain_equivalent as explain_equivalent
    from mb_config.preflight.run import DataCheck as DataCheck
    from mb_config.preflight.run import PreflightChecks as PreflightChecks
    from mb_config.preflight.run import PreflightResult as PreflightResult
    from mb_config.preflight.run import effective_dist as effective_dist
    from mb_config.preflight.run import largest_world_size as largest_world_size
    from mb_config.preflight.run import preflight as preflight
    from mb_config.resolve.fallbacks import select_local_layers as select_local_layers
    from mb_config.rules.single_fields import PATH_FIELDS as PATH_FIELDS
    from mb_config.schedules.annealing import (
        distributed_fused_adam_with_cosine_annealing as distributed_fused_adam_with_cosine_annealing,
    )
    from mb_config.schedules.learning_rate import length_overrides as length_overrides
    from mb_config.schedules.learning_rate import sequences_after as sequences_after

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
