"""Communication overlap for Megatron: presets, rules, and arguments for Transformer Engine.

`CommOverlapConfig.setup` resolves the requested overlap for a parallel layout, writes the supported settings and
returns every change:

>>> from types import SimpleNamespace
>>> from mb_overlap import CommOverlapConfig
>>> model = SimpleNamespace(
...     tensor_model_parallel_size=1, pipeline_model_parallel_size=2,
...     virtual_pipeline_model_parallel_size=None, sequence_parallel=False,
...     tp_comm_overlap=False, overlap_p2p_comm=False, batch_p2p_comm=False,
... )
>>> ddp = SimpleNamespace(use_distributed_optimizer=False)
>>> for change in CommOverlapConfig(tp_comm_overlap=False).setup(model, SimpleNamespace(), ddp):
...     print(change)
model.batch_p2p_comm: False -> True (O06: pp=2 without interleaving: sends are grouped into one call)
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_overlap.check import Conflict as Conflict
    from mb_overlap.check import find_conflicts as find_conflicts
    from mb_overlap.config import BulkOverlapCfg as BulkOverlapCfg
    from mb_overlap.config import CommOverlapConfig as CommOverlapConfig
    from mb_overlap.config import PipelineOverlapCfg as PipelineOverlapCfg
    from mb_overlap.config import RingExchangeOverlapCfg as RingExchangeOverlapCfg
    from mb_overlap.config import TPOverlapCfg as TPOverlapCfg
    from mb_overlap.config import TransformerLayerTPOverlapCfg as TransformerLayerTPOverlapCfg
    from mb_overlap.env_vars import model_env_vars as model_env_vars
    from mb_overlap.env_vars import recommended_env_vars as recommended_env_vars
    from mb_overlap.explanation import Explanation as Explanation
    from mb_overlap.explanation import explain as explain
    from mb_overlap.presets.search import PresetMatch as PresetMatch
    from mb_overlap.presets.search import find_preset as find_preset
    from mb_overlap.presets.table import PRESETS as PRESETS
    from mb_overlap.presets.table import Preset as Preset
    from mb_overlap.presets.table import UnknownPresetError as UnknownPresetError
    from mb_overlap.presets.table import preset as preset
    from mb_overlap.presets.table import (
        userbuffers_bf16_b200_h6144_tp2_mbs1_seqlen4096 as userbuffers_bf16_b200_h6144_tp2_mbs1_seqlen4096,
    )
    from mb_overlap.presets.table import (
        userbuffers_bf16_b200_h8192_tp2_mbs1_seqlen8192 as userbuffers_bf16_b200_h8192_tp2_mbs1_seqlen8192,
    )
    from mb_overlap.presets.table import (
        userbuffers_bf16_b200_h12288_tp4_mbs1_seqlen2048 as userbuffers_bf16_b200_h12288_tp4_mbs1_seqlen2048,
    )
    from mb_overlap.presets.table import (
        userbuffers_bf16_b200_h16384_tp4_cp2_mbs1_seqlen8192 as userbuffers_bf16_b200_h16384_tp4_cp2_mbs1_seqlen8192,
    )
    from mb_overlap.presets.table import (
        userbuffers_bf16_b200_h18432_tp8_mbs1_seqlen4096 as userbuffers_bf16_b200_h18432_tp8_mbs1_seqlen4096,
    )
    from mb_overlap.presets.table import (
        userbuffers_bf16_h100_h6144_tp2_mbs2_seqlen2048 as userbuffers_bf16_h100_h6144_tp2_mbs2_seqlen2048,
    )
    from mb_overlap.presets.table import (
        userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192 as userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192,
    )
    from mb_overlap.presets.table import (
        userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048 as userbuffers_bf16_h100_h12288_tp4_mbs1_seqlen2048,
    )
    from mb_overlap.presets.table import (
        userbuffers_bf16_h100_h16384_tp8_cp2_mbs1_seqlen8192 as userbuffers_bf16_h100_h16384_tp8_cp2_mbs1_seqlen8192,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_b200_h8192_tp2_mbs1_seqlen8192 as userbuffers_fp8_b200_h8192_tp2_mbs1_seqlen8192,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_b200_h12288_tp4_mbs1_seqlen2048 as userbuffers_fp8_b200_h12288_tp4_mbs1_seqlen2048,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_b200_h16384_tp4_cp2_mbs1_seqlen8192 as userbuffers_fp8_b200_h16384_tp4_cp2_mbs1_seqlen8192,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_b200_h18432_tp8_mbs1_seqlen4096 as userbuffers_fp8_b200_h18432_tp8_mbs1_seqlen4096,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_h100_h6144_tp2_mbs2_seqlen2048 as userbuffers_fp8_h100_h6144_tp2_mbs2_seqlen2048,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_h100_h8192_tp2_mbs1_seqlen4096_lora as userbuffers_fp8_h100_h8192_tp2_mbs1_seqlen4096_lora,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192 as userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_h100_h12288_tp4_mbs1_seqlen2048 as userbuffers_fp8_h100_h12288_tp4_mbs1_seqlen2048,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_h100_h16384_tp4_mbs1_seqlen2048_lora as userbuffers_fp8_h100_h16384_tp4_mbs1_seqlen2048_lora,
    )
    from mb_overlap.presets.table import (
        userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192 as userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192,
    )
    from mb_overlap.resolve import DataParallelSizeError as DataParallelSizeError
    from mb_overlap.resolve import Decision as Decision
    from mb_overlap.resolve import OverlapConflictError as OverlapConflictError
    from mb_overlap.resolve import ParallelLayout as ParallelLayout
    from mb_overlap.resolve import resolve_overlap as resolve_overlap
    from mb_overlap.rules import RULES as RULES
    from mb_overlap.setup import OverlapChange as OverlapChange
    from mb_overlap.setup import OverlapRejectedError as OverlapRejectedError
    from mb_overlap.target_sections import ModelSection as ModelSection
    from mb_overlap.transformer_engine.arguments import BufferSettingsError as BufferSettingsError
    from mb_overlap.transformer_engine.arguments import initialize_ub_arguments as initialize_ub_arguments
    from mb_overlap.transformer_engine.arguments import to_transformer_engine as to_transformer_engine
    from mb_overlap.transformer_engine.buffer_settings import setting_problems as setting_problems
    from mb_overlap.transformer_engine.user_buffers import start_user_buffers as start_user_buffers
    from mb_schema.gpu_names import UnknownGpuError as UnknownGpuError
    from mb_schema.rules import Rule as Rule

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
