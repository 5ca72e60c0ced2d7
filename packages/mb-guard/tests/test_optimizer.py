"""Faults of loading into `DistributedOptimizer`; the right losses are those of the uninterrupted run."""

import pytest

FORMATS = ["fully_reshardable", "dp_reshardable"]


@pytest.fixture(scope="module")
def saved(run_case, tmp_path_factory):
    """Return the checkpoint directory, and the losses of the uninterrupted run that wrote it."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    [losses] = run_case("case_optimizer.py", "uninterrupted", folder, FORMATS, {})
    return folder, losses


@pytest.mark.parametrize("optimizer_format", FORMATS)
def test_a_resumed_run_equals_an_uninterrupted_one(saved, run_case, optimizer_format):
    folder, losses = saved
    assert run_case("case_optimizer.py", "resumed", folder, optimizer_format, None, {}) == [losses]


def test_a_shared_step_tensor_diverges(saved, run_case):
    folder, losses = saved
    [diverged] = run_case("case_optimizer.py", "resumed", folder, FORMATS[0], "shared-step-tensor", {})
    assert diverged[0] == losses[0]
    assert abs(diverged[-1] - losses[-1]) > 1e-3


@pytest.mark.parametrize(
    ("fault", "optimizer_format", "error"),
    [
        ("distributed-optimizer-state", "fully_reshardable", "AssertionError"),
        ("step-tensor-not-saved", "fully_reshardable", "KeyError: 'step'"),
        ("load-into-leaf-views", "dp_reshardable", "RuntimeError: a view of a leaf Variable"),
    ],
)
def test_the_other_faults_raise_while_loading(saved, run_case, fault, optimizer_format, error):
    from mb_host import RankFailedError

    with pytest.raises(RankFailedError, match=error):
        run_case("case_optimizer.py", "resumed", saved[0], optimizer_format, fault, {})


def test_gaps_between_parameters_are_saved_as_zeros(run_case):
    assert run_case("case_optimizer.py", "saved_gaps", None) == [0]
    [wrong] = run_case("case_optimizer.py", "saved_gaps", "uninitialized-padding-saved")
    assert wrong > 0


def test_parameters_are_saved_as_they_are_in_padded_buckets(run_case):
    assert run_case("case_optimizer.py", "shifted", None) == [0]
    [wrong] = run_case("case_optimizer.py", "shifted", "fully-reshardable-state-is-shifted")
    assert wrong > 0.9


@pytest.mark.parametrize("optimizer_format", FORMATS)
@pytest.mark.parametrize("shape", ["MANY", "LARGE", "ODD"])
def test_a_run_with_padded_buckets_resumes(shape, optimizer_format, run_case, tmp_path):
    found = run_case(
        "case_optimizer.py", "resumed_equally", str(tmp_path), None, optimizer_format, shape, ranks=2
    )
    assert found == [True, True]


@pytest.mark.parametrize(
    ("shape", "ranks", "error"),
    [
        ("LARGE", 2, "AssertionError: empty bucket encountered"),
        ("ODD", 1, "ValueError: Failed to validate global plan"),
    ],
)
def test_padding_of_bucket_ends_is_not_saved(shape, ranks, error, run_case, tmp_path):
    from mb_host import RankFailedError

    case = "case_optimizer.py", "resumed_equally", str(tmp_path)
    assert run_case(*case, None, "dp_reshardable", shape, ranks=ranks) == [True] * ranks
    with pytest.raises(RankFailedError, match=error):
        run_case(*case, "padding-of-bucket-ends-saved", "dp_reshardable", shape, ranks=ranks)


def test_a_rank_without_parameters_of_the_optimizer_saves(run_case):
    from mb_host import RankFailedError

    [steps] = run_case("case_optimizer.py", "steps_without_parameters", None)
    assert set(steps) == {0.0}
    with pytest.raises(RankFailedError, match="AssertionError"):
        run_case("case_optimizer.py", "steps_without_parameters", "distributed-optimizer-state")


def test_adam_on_the_host_resumes(run_case, tmp_path):
    [losses] = run_case("case_optimizer.py", "offloaded", str(tmp_path), FORMATS)
    for each in FORMATS:
        assert run_case("case_optimizer.py", "resumed_offloaded", str(tmp_path), each) == [losses]


def test_a_save_before_the_first_step_leaves_the_weights(run_case):
    assert run_case("case_optimizer.py", "weights_after_a_save") == [True]


@pytest.mark.parametrize("precision_aware", [False, True])
def test_loaded_weights_reach_adam_on_the_host(precision_aware, run_case):
    assert run_case("case_optimizer.py", "reloaded", None, precision_aware) == [0]
    [moved] = run_case(
        "case_optimizer.py", "reloaded", "offloaded-optimizer-keeps-old-weights", precision_aware
    )
    assert (moved > 0.5) is not precision_aware
