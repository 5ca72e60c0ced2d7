"""Device synchronisations and collectives of a step, of the loop and of Megatron's optimizer.

Run: python benchmarks/bench_syncs.py (needs megatron-core and mb-host). Each line is one place in the code that reads a
tensor on the host (`item`, `tolist`, `float`, a copy to the host) or starts a collective, with how often per step. The
model is one linear layer in Megatron's DistributedDataParallel, on one gloo rank.
"""

# ruff: noqa: PLC0415 (only the rank imports Megatron, after mb_host.install)

import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import mb_host

STEPS = 10
READS = {"aten::_local_scalar_dense", "aten::item"}


def place():
    """Return the innermost source location outside of torch and this file, as "package/file.py function"."""
    for frame in reversed(traceback.extract_stack()):
        parts = Path(frame.filename).parts
        if "torch" not in parts and parts[-1] != "contextlib.py" and Path(frame.filename) != Path(__file__):
            return f"{'/'.join(parts[-3:])} {frame.name}"
    return "?"


def count(rerun_mode=None, **section):  # noqa: C901 (a complete run, including the model)
    """Train some steps; return counters of reads and collectives by source location."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.enums import ModelType
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch.utils._python_dispatch import TorchDispatchMode

    import mb_loop
    from mb_loop.mcore import MegatronRerunMachine

    reads, collectives = Counter(), Counter()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function._schema.name in READS:
                reads[place()] += 1
            elif function._schema.name.startswith("c10d::"):
                collectives[place()] += 1
            return function(*args, **(kwargs or {}))

    class Model(MegatronModule):
        def __init__(self, config):
            super().__init__(config)
            self.layer = torch.nn.Linear(4, 4)
            self.model_type = ModelType.encoder_or_decoder

        def forward(self, x):
            return self.layer(x)

        def set_input_tensor(self, tensor):
            pass

    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
    config.finalize_model_grads_func = finalize_model_grads
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True), Model(config)
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(lr=0.1, clip_grad=1.0, use_distributed_optimizer=True), [model]
    )
    rerun = rerun_mode and MegatronRerunMachine(SimpleNamespace(
        rerun_mode=rerun_mode, spiky_loss_factor=10.0, error_injection_rate=0, error_injection_type="transient_error",
        check_for_nan_in_loss=True, check_for_spiky_loss=False,
    ))  # fmt: skip

    def forward_step(iterator, model):
        def loss_function(output):
            loss = output.square().mean()
            if rerun:
                rerun.inspect_loss(loss.detach())
            return loss, {"loss": loss.detach()}

        return model(torch.ones(2, 4)), loss_function

    class Recorder(mb_loop.Callback):
        """Callback that stores a row per step on the device, as metrics do between two log intervals."""

        def __init__(self):
            self.rows = []

        def on_train_step_end(self, context):
            self.rows.append(torch.stack(list(context.result.losses.values())))

    state = mb_loop.LoopState.of(train_iters=STEPS, seq_length=1, **section)
    groups = SimpleNamespace(dp_cp=torch.distributed.group.WORLD, mp=torch.distributed.group.WORLD)
    with Watch():
        parts = mb_loop.TrainParts(
            forward_step_func=forward_step,
            model=model,
            optimizer=optimizer,
            train_data_iterator=iter(int, 1),
            pg_collection=groups,
            rerun_machine=rerun,
            forward_backward_func=get_forward_backward_func(),
            callbacks=[Recorder()],
            flops=lambda result: 1e9,
        )
        mb_loop.train(parts, state)
    return reads, collectives


def main():
    runs = {
        "plain": {},
        "with exit_duration_in_mins": {"exit_duration_in_mins": 60},
        "rerun machine, disabled, losses checked": {"rerun_mode": "disabled"},
        "rerun machine, validate_results": {"rerun_mode": "validate_results"},
    }
    with mb_host.RankPool(1) as pool:
        for name, keywords in runs.items():
            reads, collectives = pool.run(mb_host.function_in(__file__, "one"), keywords)[0]
            print(f"{name}:")
            for kind, places in (("read", reads), ("collective", collectives)):
                for where, times in sorted(places.items()):
                    print(f"  {kind:10} {times / STEPS:4.1f} a step  {where}")


def one(keywords):
    return count(**keywords)


if __name__ == "__main__":
    main()
