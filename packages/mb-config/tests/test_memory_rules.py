"""Memory of a run: overhead in the plan, and the rules that compare it with the GPU."""

import os

import pytest

from mb_config import make_plan
from mb_config.plan.overhead import CUDA_BYTES, NCCL_BYTES
from mb_config.preflight.facts import ALLOW_OOM, TargetMachine, machine_facts
from mb_config.preflight.run import memory_facts, preflight

MODEL = {
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "gated_linear_unit": True,
    "vocab_size": 32_000,
    "seq_length": 4096,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bf16": True,
}
H100 = {"gpu": "h100", "world_size": 1, "env": {}, "transformer_engine": True}


@pytest.fixture
def problems(make):
    """Return a function that checks a model on one H100, and returns the ids of the problems on memory."""

    def check(*, facts=H100, micro_batch_size=1, **model):
        config = make(model={**MODEL, **model})
        config.dataset.seq_length = 4096
        config.train.micro_batch_size = micro_batch_size
        config.optimizer.bf16 = True
        found = preflight(config, facts=facts)
        return [problem.id for problem in found.problems if problem.id.startswith("PL")]

    return check


def test_a_state_that_does_not_fit_is_an_error(problems):
    assert problems() == ["PL01", "PL02"]


def test_activations_that_do_not_fit_are_a_warning(problems):
    assert problems(num_layers=12) == []
    assert problems(num_layers=12, micro_batch_size=8) == ["PL02"]


def test_a_run_can_start_anyway(problems):
    assert problems(facts={**H100, "allow_oom": True}) == ["PL02"]
    facts = machine_facts(
        TargetMachine(world_size=1), gpus=lambda _: ["NVIDIA H100"], environment={ALLOW_OOM: "1"}
    )
    assert facts["allow_oom"] is True


@pytest.mark.parametrize(
    "facts", [{**H100, "gpu": None}, {**H100, "cpu": True}, {**H100, "world_size": None}]
)
def test_nothing_is_known_without_a_gpu_and_a_number_of_processes(make, facts):
    assert memory_facts(make(model=dict(MODEL)), facts) == {}


def test_a_model_that_cannot_be_planned_has_no_facts_on_memory(make):
    assert memory_facts(make(model={"num_layers": 2}), H100) == {}


def test_the_overhead_has_a_part_for_each_communicator():
    plan = make_plan({"model": {**MODEL, "tensor_model_parallel_size": 2}}, world_size=4)
    assert (plan.overhead.cuda, plan.overhead.nccl) == (CUDA_BYTES, 2 * NCCL_BYTES)
    assert plan.needed_bytes is None  # activations depend on the batch


def test_expandable_segments_fragment_less():
    train = {"global_batch_size": 1, "micro_batch_size": 1}
    sections = {"model": MODEL, "train": train, "dataset": {"seq_length": 4096}, "optimizer": {"bf16": True}}
    plain = make_plan(sections, world_size=1).overhead.fragmentation
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert 0 < make_plan({**sections, "env_vars": variables}, world_size=1).overhead.fragmentation < plain


def test_the_option_reaches_the_processes_that_are_started(monkeypatch):
    pytest.importorskip("typer", reason="needs mb-config[cli]")
    from mb_config.cli.options import set_allow_oom

    monkeypatch.delenv(ALLOW_OOM, raising=False)
    assert (set_allow_oom(False), ALLOW_OOM in os.environ) == (False, False)
    assert (set_allow_oom(True), os.environ[ALLOW_OOM]) == (True, "1")
    monkeypatch.delenv(ALLOW_OOM)
