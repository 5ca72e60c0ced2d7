"""Work of the ranks in test_extra_state.py: a norm with extra state, as modules of Transformer Engine have."""

import io
import os
import pickle
import struct
from pathlib import Path

import torch
from rank_work import new_run


class NormWithExtraState(torch.nn.RMSNorm):
    """Norm with extra state."""

    kept = torch.tensor([7.0])

    def get_extra_state(self):
        return self.kept

    def set_extra_state(self, state):
        self.kept = state


def save(section, keeps):
    """Save a run whose last norm has extra state, or not."""
    run = _run({}, section, keeps)
    run.train(1)
    run.save()


def load(section, keeps, value):
    """Load into such a run; return the extra state of its norm, the step, and the notes."""
    run = _run({"seed": 99}, section, keeps)
    norm = _norm(run)
    norm.kept = torch.tensor(value)
    record = run.load()
    return norm.kept.tolist(), record.step, record.notes


def load_weights(section, keeps):
    """Load only the weights; return the step."""
    from mb_checkpoint import load_model_weights

    return load_model_weights(section["load"], _run({"seed": 99}, {}, keeps).model).step


def _run(shape, section, keeps):
    run = new_run(shape, **section)
    if keeps:
        _norm(run).__class__ = NormWithExtraState
    return run


def _norm(run):
    return run.model[0].module.decoder.final_layernorm


def missing_state_of_grouped_experts():
    """Return the extra state of grouped experts that an empty checkpoint lacks."""
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    from mb_checkpoint import mcore
    from mb_checkpoint.state import extra_state

    names = [f"experts.linear_fc1.{name}" for name in ("_extra_state", "_extra_state1", "weight1")]
    entries = {name: ShardedObject(name, number, (1,), (0,)) for number, name in enumerate(names)}
    contents = mcore.CheckpointContents(common={}, shapes={}, objects=frozenset())
    return extra_state.missing_entries({"model": entries}, contents)["model"]


class EngineTracker:
    """Tracker without Megatron's attribute for CUDA graphs, like that of Transformer Engine."""

    def __init__(self):
        self.states = {"model-parallel-rng": torch.Generator().manual_seed(5)}

    def get_states(self):
        return dict(self.states)

    def set_states(self, states):
        self.states = states


def states_of_another_tracker():
    """Store the states of such a tracker and restore them; return their types before and after."""
    from mb_checkpoint import mcore

    tracker, own = EngineTracker(), mcore.get_cuda_rng_tracker
    mcore.get_cuda_rng_tracker = lambda: tracker
    try:
        stored = mcore.MegatronRng().get_states()
        mcore.MegatronRng().set_states(stored)
    finally:
        mcore.get_cuda_rng_tracker = own
    return [type(states["model-parallel-rng"]).__name__ for states in (stored, tracker.states)]


class NormWithPickledState(torch.nn.RMSNorm):
    """Norm with the scales of delayed scaling, which it reads as Transformer Engine 2.20 does."""

    kept: object = None

    def get_extra_state(self):
        return torch.frombuffer(bytearray(pickle.dumps(self.kept)), dtype=torch.uint8)

    def set_extra_state(self, state):
        if not state.numel():
            return
        if os.getenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "0") != "1":
            raise RuntimeError("Refusing to load pickled Transformer Engine extra state")
        self.kept = pickle.loads(state.numpy().tobytes())


class Code:
    """A pickle that creates a folder when it is read."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def save_scales(section, code):
    """Save a run whose last norm has scales, with a folder to create among them if there is one."""
    run = _run({}, section, False)
    _norm(run).__class__ = NormWithPickledState
    scales = {"scale_fwd": torch.tensor([2.0, 8.0]), "extra_fp8_variables": {"num_gemms": 1}}
    _norm(run).kept = scales | ({"amax": Code(code)} if code else {})
    run.train(1)
    run.save()


def reasons_against_scales():
    """Return why scales of either version of Transformer Engine are left out that declare more than they have."""
    from mb_checkpoint.state.extra_state import reject_code

    deep = b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."
    inner = b"\x80\x02ctorch.storage\n_load_from_bytes\nB" + struct.pack("<I", len(deep)) + deep + b"\x85R."
    values = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in (deep, inner)] + [
        io.BytesIO(deep)
    ]
    entries = {f"{number}._extra_state": value for number, value in enumerate(values)}
    kept, reasons = reject_code({"model": entries}, Path("/elsewhere"))
    return [value.numel() for value in kept["model"].values()], reasons


def load_scales(section):
    """Load into such a run; return its scales, the notes, and what the environment has kept."""
    run = _run({"seed": 99}, section, False)
    norm = _norm(run)
    norm.__class__ = NormWithPickledState
    norm.kept = {"scale_fwd": torch.tensor([1.0])}
    record = run.load()
    return norm.kept["scale_fwd"].tolist(), record.notes, [name for name in os.environ if "PICKLE" in name]
