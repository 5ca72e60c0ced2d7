"""What a training run needs, before it starts: parameters, memory of each GPU, time of a step, the best layouts.

>>> from mb_plan import make_plan
>>> model = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32}
>>> model |= {"num_query_groups": 8, "gated_linear_unit": True, "normalization": "RMSNorm", "add_bias_linear": False}
>>> model |= {"vocab_size": 128_256, "position_embedding_type": "rope", "tensor_model_parallel_size": 2}
>>> plan = make_plan({"model": model}, world_size=8)
>>> f"{plan.parameters:,}, {plan.data_parallel_size} replicas"
'8,030,261,248, 4 replicas'
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_plan.errors import PlanError as PlanError
    from mb_plan.facts import planned_facts as planned_facts
    from mb_plan.memory.gpu_memory import GPU_MEMORY as GPU_MEMORY
    from mb_plan.memory.gpu_memory import GpuMemory as GpuMemory
    from mb_plan.memory.memory_chart import render_memory_chart as render_memory_chart
    from mb_plan.memory.resource_plan import RankBytes as RankBytes
    from mb_plan.memory.resource_plan import ResourcePlan as ResourcePlan
    from mb_plan.memory.resource_plan import StagePlan as StagePlan
    from mb_plan.memory.resource_plan import make_plan as make_plan
    from mb_plan.rules import RULES as RULES
    from mb_plan.shape.adapters import Adapters as Adapters
    from mb_plan.shape.adapters import read_adapters as read_adapters
    from mb_plan.shape.flops import flops_per_token as flops_per_token
    from mb_plan.shape.model_shape import ModelShape as ModelShape
    from mb_plan.shape.model_shape import read_shape as read_shape
    from mb_plan.shape.sources import RunSource as RunSource
    from mb_plan.shape.sources import model_of_sizes as model_of_sizes
    from mb_plan.shape.sources import read_command_line as read_command_line
    from mb_plan.shape.sources import read_model as read_model
    from mb_plan.sweep.grid import Axis as Axis
    from mb_plan.sweep.grid import SweepResult as SweepResult
    from mb_plan.sweep.grid import run_sweep as run_sweep
    from mb_plan.sweep.layouts import layout_axes as layout_axes
    from mb_plan.sweep.run import RunDescription as RunDescription
    from mb_plan.sweep.run import best_layouts as best_layouts
    from mb_plan.sweep.run import describe_run as describe_run
    from mb_plan.time.prediction import Prediction as Prediction
    from mb_plan.time.prediction import predict as predict
    from mb_plan.time.prediction import predicted_speed as predicted_speed

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
