"""What the trainer imports from mb_models beyond its public names; they change with its version as those do."""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_models.config import DType as DType
    from mb_models.config import KernelFields as KernelFields
    from mb_models.config import OverlapFields as OverlapFields
    from mb_models.errors import HuggingFaceError as HuggingFaceError
    from mb_models.errors import HuggingFaceFolderError as HuggingFaceFolderError
    from mb_models.errors import OutputExistsError as OutputExistsError
    from mb_models.evaluation.generation import all_logits as all_logits
    from mb_models.evaluation.lm_eval import TrainedLM as TrainedLM
    from mb_models.evaluation.lm_eval import register_model as register_model
    from mb_models.evaluation.perplexity import Perplexity as Perplexity
    from mb_models.evaluation.perplexity import measure_sets as measure_sets
    from mb_models.families import ForwardStep as ForwardStep
    from mb_models.families import require_text_family as require_text_family
    from mb_models.gpt.layer_choice import AvailableLayers as AvailableLayers
    from mb_models.hf.adoption import AdoptedArchitecture as AdoptedArchitecture
    from mb_models.hf.adoption import adopt_architecture as adopt_architecture
    from mb_models.hf.adoption import is_model_folder as is_model_folder
    from mb_models.hf.carried import GENERATION as GENERATION
    from mb_models.hf.carried import carry_files as carry_files
    from mb_models.hf.carried import stop_tokens as stop_tokens
    from mb_models.hf.config_json import ARCHITECTURES as ARCHITECTURES
    from mb_models.hf.config_json import architecture_of as architecture_of
    from mb_models.hf.config_json import read_config as read_config
    from mb_models.hf.config_json import section_of as section_of
    from mb_models.hf.config_json import unequal_parts as unequal_parts
    from mb_models.hf.conversion import memory_mapped_model as memory_mapped_model
    from mb_models.hf.conversion import require_convertible as require_convertible
    from mb_models.hf.conversion import section_of_folder as section_of_folder
    from mb_models.hf.export import export_model as export_model
    from mb_models.hf.export_part import SHARD_BYTES as SHARD_BYTES
    from mb_models.hf.export_part import WHOLE as WHOLE
    from mb_models.hf.export_part import ExportPart as ExportPart
    from mb_models.hf.hybrid_families import LETTERS as LETTERS
    from mb_models.hf.load import load_hf_weights as load_hf_weights
    from mb_models.hf.safetensors_files import TensorFolder as TensorFolder
    from mb_models.hf.save import hf_weights as hf_weights
    from mb_models.hf.save import save_hf_model as save_hf_model
    from mb_models.hybrid.config import main_layers as main_layers
    from mb_models.megatron_fields import megatron_fields as megatron_fields
    from mb_models.mimo.config import has_module_layouts as has_module_layouts
    from mb_models.mimo.layout_rules import stored_optimizer_error as stored_optimizer_error
    from mb_models.peft.config import section_by_name as section_by_name
    from mb_models.peft.loading import load_merged as load_merged
    from mb_models.peft.loading import require_adapters as require_adapters
    from mb_models.rules.kernels import FALLBACKS as FALLBACKS
    from mb_models.rules.kernels import kernel_facts as kernel_facts
    from mb_models.training.forward_step import Loss as Loss
    from mb_models.training.setup import build_optimizer as build_optimizer
    from mb_models.training.setup import connect_optimizer as connect_optimizer
    from mb_models.training.setup import data_groups as data_groups
    from mb_models.training.setup import wrap_data_parallel as wrap_data_parallel
    from mb_models.training.stored_architecture import adopt_stored_architecture as adopt_stored_architecture
    from mb_models.training.unsharded import unshard as unshard
    from mb_models.training.vocab import VocabularyError as VocabularyError
    from mb_models.training.vocab import known_vocab_size as known_vocab_size
    from mb_models.training.vocab import padding_note as padding_note
    from mb_models.training.weight_shapes import fixed_by_weights as fixed_by_weights

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
