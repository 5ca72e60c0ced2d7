"""Megatron Core models ready to train: configs, providers, batches and forward steps.

A section is data, and counting needs neither torch nor Megatron:

>>> from mb_models import GPTModelConfig, padded_vocab_size, parameter_count
>>> config = GPTModelConfig(
...     num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32, num_query_groups=8,
...     normalization="RMSNorm", gated_linear_unit=True, activation_func="silu", add_bias_linear=False,
...     position_embedding_type="rope", seq_length=8192,
... )
>>> parameter_count(config, vocab_size=padded_vocab_size(128256, divisible_by=128, tensor_parallel_size=1))
8030261248
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_models.config import GPTModelConfig as GPTModelConfig
    from mb_models.config import TransformerFields as TransformerFields
    from mb_models.errors import BatchError as BatchError
    from mb_models.errors import EvaluationMetricsError as EvaluationMetricsError
    from mb_models.errors import ModelConfigError as ModelConfigError
    from mb_models.errors import ModelsError as ModelsError
    from mb_models.evaluation.generation import PromptError as PromptError
    from mb_models.evaluation.generation import generate as generate
    from mb_models.evaluation.metrics import EvaluationOutput as EvaluationOutput
    from mb_models.families import Family as Family
    from mb_models.families import family_of as family_of
    from mb_models.gpt.layer_choice import LayerChoice as LayerChoice
    from mb_models.gpt.layer_choice import choose_layers as choose_layers
    from mb_models.gpt.layer_specs import local_spec as local_spec
    from mb_models.gpt.layer_specs import transformer_engine_spec as transformer_engine_spec
    from mb_models.gpt.provider import GPTModelProvider as GPTModelProvider
    from mb_models.gpt.provider import LayerSpec as LayerSpec
    from mb_models.gpt.transformer import transformer_config as transformer_config
    from mb_models.gpt.value_head import HeadError as HeadError
    from mb_models.gpt.value_head import LinearForLastLayer as LinearForLastLayer
    from mb_models.gpt.value_head import create_value_head_hook as create_value_head_hook
    from mb_models.gpt.value_head import make_value_model as make_value_model
    from mb_models.hybrid.config import HybridModelConfig as HybridModelConfig
    from mb_models.hybrid.config import MambaModelConfig as MambaModelConfig
    from mb_models.hybrid.provider import HybridForwardStep as HybridForwardStep
    from mb_models.hybrid.provider import HybridModelProvider as HybridModelProvider
    from mb_models.hybrid.provider import MambaForwardStep as MambaForwardStep
    from mb_models.hybrid.provider import MambaModelProvider as MambaModelProvider
    from mb_models.hybrid.provider import hybrid_transformer_engine_spec as hybrid_transformer_engine_spec
    from mb_models.mimo.config import MimoModelConfig as MimoModelConfig
    from mb_models.mimo.config import ModuleRanks as ModuleRanks
    from mb_models.mimo.groups import ModuleGroups as ModuleGroups
    from mb_models.mimo.modules import MimoModules as MimoModules
    from mb_models.mimo.provider import MimoForwardStep as MimoForwardStep
    from mb_models.mimo.provider import MimoModelProvider as MimoModelProvider
    from mb_models.parameters import hybrid_parameter_count as hybrid_parameter_count
    from mb_models.parameters import mimo_parameter_count as mimo_parameter_count
    from mb_models.parameters import parameter_count as parameter_count
    from mb_models.parameters import t5_parameter_count as t5_parameter_count
    from mb_models.peft.config import PEFT as PEFT
    from mb_models.peft.config import CanonicalLoRA as CanonicalLoRA
    from mb_models.peft.config import DoRA as DoRA
    from mb_models.peft.config import LoRA as LoRA
    from mb_models.rules import RULES as RULES
    from mb_models.rules.fsdp import FsdpError as FsdpError
    from mb_models.t5.config import T5ModelConfig as T5ModelConfig
    from mb_models.t5.provider import T5ForwardStep as T5ForwardStep
    from mb_models.t5.provider import T5LayerSpec as T5LayerSpec
    from mb_models.t5.provider import T5ModelProvider as T5ModelProvider
    from mb_models.t5.provider import attention_masks as attention_masks
    from mb_models.t5.provider import t5_transformer_engine_spec as t5_transformer_engine_spec
    from mb_models.training.batches import Batch as Batch
    from mb_models.training.batches import get_batch as get_batch
    from mb_models.training.chunks import StackSpec as StackSpec
    from mb_models.training.forward_step import GPTForwardStep as GPTForwardStep
    from mb_models.training.forward_step import gpt_forward_step as gpt_forward_step
    from mb_models.training.forward_step import masked_next_token_loss as masked_next_token_loss
    from mb_models.training.freezing import FreezingError as FreezingError
    from mb_models.training.freezing import freeze_moe_router as freeze_moe_router
    from mb_models.training.fsdp import wrap_megatron_fsdp as wrap_megatron_fsdp
    from mb_models.training.fsdp import wrap_torch_fsdp2 as wrap_torch_fsdp2
    from mb_models.training.gpu_only import gpu_only_settings as gpu_only_settings
    from mb_models.training.setup import DataParallelSetup as DataParallelSetup
    from mb_models.training.setup import OptimizerSetup as OptimizerSetup
    from mb_models.training.setup import TrainingModel as TrainingModel
    from mb_models.training.setup import build_training_model as build_training_model
    from mb_models.training.vocab import model_vocab_size as model_vocab_size
    from mb_models.training.vocab import padded_vocab_size as padded_vocab_size
    from mb_models.training.wrap import wrap_ddp as wrap_ddp
    from mb_models.training.wrap import wrap_half_precision as wrap_half_precision

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
