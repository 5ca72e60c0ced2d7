"""No parameter is accepted and ignored: a public function reads each one, or it is listed with a reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import SOURCES

SPEC = "Megatron calls every layer spec with it; this one is the same for all pipeline stages"
SEED = "a position of the seed's signature"
SAME_MACHINE = "a fact: the rule applies where the check runs on the machine of the run"
LM = "parameter of Megatron-LM's function"
TRUST = "the callback of the option trusts the folders for the length of the command"
BRIDGE = "Megatron-Bridge's signature"
ALLOWED = {
    "mb_checkpoint.rules.conditions.load_has_checkpoint.same_machine": SAME_MACHINE,
    "mb_checkpoint.rules.conditions.pretrained_has_checkpoint.same_machine": SAME_MACHINE,
    "mb_checkpoint.rules.conditions.source_is_folder.same_machine": SAME_MACHINE,
    "mb_checkpoint.rules.conditions.step_exists.same_machine": SAME_MACHINE,
    "mb_checkpoint.rules.conditions.storage_can_be_opened.same_machine": SAME_MACHINE,
    "mb_trainer.bridge.auto_bridge.AutoBridge.from_hf_pretrained.trust_remote_code": f"{BRIDGE}; no code is run",
    "mb_trainer.bridge.auto_bridge.AutoBridge.import_ckpt.trust_remote_code": f"{BRIDGE}; no code is run",
    "mb_trainer.bridge.auto_bridge.AutoBridge.export_ckpt.show_progress": f"{BRIDGE}; nothing is printed",
    "mb_trainer.bridge.auto_bridge.AutoBridge.export_ckpt.strict": f"{BRIDGE}; a lost tensor is always an error",
    "mb_trainer.bridge.auto_bridge.AutoBridge.export_hf_weights.show_progress": f"{BRIDGE}; nothing is printed",
    "mb_trainer.bridge.auto_bridge.AutoBridge.save_hf_pretrained.show_progress": f"{BRIDGE}; nothing is printed",
    "mb_trainer.bridge.auto_bridge.AutoBridge.save_hf_pretrained.strict": f"{BRIDGE}; a lost tensor is always an error",
    "mb_trainer.bridge.auto_bridge.AutoBridge.save_hf_pretrained.distributed_save": f"{BRIDGE}; the folder is the same",
    "mb_trainer.bridge.config_overrides.apply_content.excluded_fields": f"{BRIDGE}; it is empty",
    "mb_trainer.bridge.process_groups.initialize_megatron.allow_no_cuda": f"{BRIDGE}; the CPU computes, too",
    "mb_trainer.bridge.process_groups.set_jit_fusion_options.micro_batch_size": f"{BRIDGE}; torch compiles later",
    "mb_trainer.bridge.process_groups.set_jit_fusion_options.model_config": f"{BRIDGE}; torch compiles later",
    "mb_trainer.bridge.providers.BuiltProvider.register_pre_wrap_hook.hook": f"{BRIDGE}; it is rejected",
    "mb_trainer.bridge.providers.BuiltProvider.register_pre_wrap_hook.prepend": f"{BRIDGE}; it is rejected",
    "mb_trainer.bridge.providers.BuiltProvider.register_post_wrap_hook.hook": f"{BRIDGE}; it is rejected",
    "mb_trainer.bridge.providers.BuiltProvider.register_post_wrap_hook.prepend": f"{BRIDGE}; it is rejected",
    "mb_trainer.bridge.scripts.is_safe_repo.hf_path": f"{BRIDGE}; no code is run",
    "mb_checkpoint.megatron.torch_optimizer.TorchOptimizerState.sharded_state_dict.metadata": "of sharded ones",
    "mb_checkpoint.formats.unpickling.SafeFileSystemReader.read_metadata.args": "torch's signature; one index",
    "mb_checkpoint.formats.unpickling.SafeFileSystemReader.read_metadata.kwargs": "torch's signature; one index",
    "mb_guard.faults.mtp.without_scale.loss_scale": "the original gets 1 in its place",
    "mb_guard.faults.transformer_engine.split_along_dim.missing": "the original is None",
    "mb_checkpoint.manager.DefaultCheckpointManager.finalize_async_saves.state": f"{SEED}; the manager has the saves",
    "mb_loop.bridge_api.checkpoint_and_decide_exit.train_data_iterator": f"{SEED}; the checkpointer has the position",
    "mb_loop.bridge_api.save_checkpoint_and_time.train_data_iterator": f"{SEED}; the checkpointer has the position",
    "mb_loop.step.result.no_flops.result": "the empty operation count",
    "mb_loop.step.schedule.forward_backward_no_pipelining.unused": "arguments of Megatron's schedules for pipelining",
    "mb_metrics.run.megatron_log.log_step.history_wct": f"{SEED}; Metrics measures time itself",
    "mb_metrics.run.megatron_lm_log.log_megatron_lm_step.is_first_iteration": f"{LM}; Metrics decides what is printed",
    "mb_metrics.run.megatron_lm_log.log_megatron_lm_step.seqlen_squared_sum_in_batch": f"{LM}; FLOPs are counted here",
    "mb_metrics.norms.parameters.calc_params_l2_norm.model_config": f"{SEED}; the groups and parameters are enough",
    "mb_metrics.profiling.window.NsysRange.begin.steps": "a profiler that the step count does not concern",
    "mb_metrics.profiling.window.NsysRange.begin.warmup": "a profiler that the step count does not concern",
    "mb_metrics.profiling.window.StepRanges.step_end.step": "the range of the step is the open one",
    "mb_metrics.recorder.bridge_api.report_throughput.iteration": f"{SEED}; the history holds the steps",
    "mb_metrics.profiling.torch_profilers.TorchTrace.step_end.step": "torch's profiler counts the steps itself",
    "mb_resilience.stragglers.nvrx_straggler.NVRxStragglerMonitor.stop_requested.step": "the report interval decides",
    "mb_resilience.stops.signals.IgnoreSignals.__call__.worker": "worker_init_fn of PyTorch; all workers are equal",
    "mb_models.gpt.value_head.LinearForLastLayer.forward.runtime_gather_output": f"{SEED}; the weight is replicated",
    "mb_models.gpt.value_head.LinearForLastLayer.forward.weight": f"{SEED}; the head has its own weight",
    "mb_checkpoint.save.planner.ShardSavePlanner.plan.directory": "torch's planner interface; the plan names no folder",
    "mb_checkpoint.save.planner.ShardSavePlanner.plan.metadata": "torch's planner interface; shards carry the metadata",
    "mb_checkpoint.save.planner.ShardSavePlanner.plan.validate": "torch's planner interface; shards are validated here",
    "mb_config.container.container.ConfigContainer.planned_facts.facts": "the base class, which plans nothing",
    "mb_config.container.container.ConfigContainer.planned_facts.saves": "the base class, which plans nothing",
    "mb_host.megatron.grouped_experts.GroupedLinear.__init__.name": "Transformer Engine's; a label for its debugger",
    "mb_host.megatron.grouped_experts.GroupedLinear.__init__.tp_comm_buffer_name": "Transformer Engine's; none here",
    "mb_host.megatron.hybrid.host_hybrid_spec.pp_rank": SPEC,
    "mb_host.megatron.hybrid.host_hybrid_spec.vp_stage": SPEC,
    "mb_host.megatron.kernels.mamba_split_conv1d_scan_combined.norm_before_gate": "documented: it applies no norm",
    "mb_host.megatron.kernels.TELinear.__init__.name": "Transformer Engine's; a label for its debugger",
    "mb_host.megatron.layers.HostCoreAttention.__init__.attention_type": "Transformer Engine's; the mask decides",
    "mb_host.megatron.layers.HostCoreAttention.__init__.cp_comm_type": "Transformer Engine's; one way here",
    "mb_loop.callbacks.Callback.stop_requested.step": "the base class, which never ends training",
    "mb_loop.exits.early_stopping.EarlyStopping.stop_requested.step": "the number of evaluations decides",
    "mb_models.peft.config.PEFT.freeze_model.training": "Megatron-Bridge's signature; the base class freezes anyway",
    "mb_models.peft.config.PEFT.optimizer_overrides.lr": "the base class, without rates of its own",
    "mb_models.peft.config.PEFT.optimizer_overrides.min_lr": "the base class, without rates of its own",
    "mb_host.megatron.t5.host_t5_spec.pp_rank": SPEC,
    "mb_host.megatron.t5.host_t5_spec.vp_stage": SPEC,
    "mb_models.hybrid.provider.hybrid_transformer_engine_spec.config": SPEC,
    "mb_models.hybrid.provider.hybrid_transformer_engine_spec.pp_rank": SPEC,
    "mb_models.hybrid.provider.hybrid_transformer_engine_spec.vp_stage": SPEC,
    "mb_models.t5.provider.t5_transformer_engine_spec.pp_rank": SPEC,
    "mb_models.t5.provider.t5_transformer_engine_spec.vp_stage": SPEC,
    "mb_verify.record.recorder.StepResultReader.__init__.context": "a StateReader that reads no state",
    "mb_verify.record.recorder.StepResultReader.state.context": "a StateReader that reads no state",
    "mb_verify.record.recorder.StepResultReader.state.complete": "a StateReader that reads no state",
    "mb_launch.cloudai.definition.MegatronBridgeTestDefinition.constraint_check.system": "CloudAI's signature",
    "mb_launch.cloudai.definition.MegatronBridgeTestDefinition.constraint_check.tr": "CloudAI's signature",
}
"""Public parameter ("module.function.parameter") to the reason why nothing reads it."""


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of all parameters but self, cls, those marked as unused by "_", and the context of events."""
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    passed = ("self", "cls", "context") if function.name.startswith("on_") else ("self", "cls")
    return [arg.arg for arg in named if arg.arg not in passed and not arg.arg.startswith("_")]


def names_read(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that a body reads; `del name` and `_ = name` do not count."""
    discarded = {
        id(node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["_"]
    }
    nodes = (node for statement in function.body for node in ast.walk(statement))
    return {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in discarded
    }


def does_nothing(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a body is empty or not implemented, as of a hook to override or a method of a Protocol."""
    rest = [
        node
        for node in function.body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node))
        for node in rest
    )


def unread(node: ast.AST, path: str, *, protocol: bool = False) -> Iterator[str]:
    """Yield the parameters of public functions and methods that their bodies do not read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            bases = [ast.unparse(base) for base in child.bases]
            yield from unread(
                child, f"{path}.{child.name}", protocol=any("Protocol" in base for base in bases)
            )
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            private = child.name.startswith("_") and child.name not in ("__init__", "__call__")
            if not (private or protocol or does_nothing(child)):
                read = names_read(child)
                yield from (f"{path}.{child.name}.{name}" for name in parameters(child) if name not in read)
        elif isinstance(child, (ast.If, ast.Try)):
            yield from unread(child, path, protocol=protocol)


def unread_in(folder: Path) -> list[str]:
    """Return the parameters that a package accepts and ignores."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        module = ".".join([folder.name, *file.relative_to(folder).with_suffix("").parts])
        found += unread(ast.parse(file.read_text()), module)
    return found


@pytest.mark.parametrize("folder", SOURCES, ids=lambda folder: folder.name)
def test_no_parameter_is_accepted_and_ignored(folder):
    assert [name for name in unread_in(folder) if name not in ALLOWED] == []


def test_each_entry_of_the_list_is_still_needed():
    found = {name for folder in SOURCES for name in unread_in(folder)}
    assert sorted({*ALLOWED} - found) == []


def test_an_ignored_parameter_is_found(tmp_path):
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "one.py").write_text("def f(a, b, c, d):\n    del b\n    _ = c\n    return a\n")
    assert unread_in(tmp_path / "planted") == [f"planted.one.f.{name}" for name in "bcd"]
