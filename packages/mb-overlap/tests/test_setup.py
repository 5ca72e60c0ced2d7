"""`CommOverlapConfig.setup` on plain sections: written values, returned changes, unchanged fields."""

from argparse import Namespace
from copy import deepcopy
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_overlap import CommOverlapConfig, OverlapConflictError, OverlapRejectedError, preset

PRESET = "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"


def model_section(*, tp=1, pp=1, vp=None, sequence_parallel=False, **fields):
    defaults = {
        "tp_comm_overlap": False,
        "tp_comm_overlap_cfg": None,
        "tp_comm_bootstrap_backend": "nccl",
        "overlap_p2p_comm": False,
        "batch_p2p_comm": True,
        "defer_embedding_wgrad_compute": False,
        "wgrad_deferral_limit": -1,
    }
    return SimpleNamespace(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vp,
        sequence_parallel=sequence_parallel,
        **{**defaults, **fields},
    )


def optimizer_section(*, sharded=False):
    return SimpleNamespace(
        use_distributed_optimizer=sharded,
        overlap_param_gather=False,
        overlap_param_gather_with_optimizer_step=False,
    )


def ddp_section(*, sharded=False, **fields):
    defaults = {
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "align_param_gather": False,
        "bucket_size": None,
    }
    return SimpleNamespace(**{**defaults, **fields})


def short(changes):
    return [(change.field, change.old, change.new, change.rule) for change in changes]


def warnings(changes):
    return [(change.field, change.rule) for change in changes if change.severity == "warning"]


def test_all_changes_of_a_layout_are_returned():
    config = CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=8)
    changes = config.setup(model_section(pp=2, vp=2), optimizer_section(), ddp_section(sharded=True))
    assert short(changes) == [
        ("model.overlap_p2p_comm", False, True, "O05"),
        ("model.batch_p2p_comm", True, False, "O05"),
        ("optimizer.overlap_param_gather", False, True, "O12"),
        ("ddp.bucket_size", None, 134217728, "O12"),
        ("ddp.overlap_grad_reduce", False, True, "O12"),
        ("ddp.overlap_param_gather", False, True, "O12"),
        ("ddp.align_param_gather", False, True, "O13"),
    ]


def test_change_prints_as_one_line():
    config = CommOverlapConfig(tp_comm_overlap=False)
    (change,) = config.setup(model_section(), optimizer_section(), ddp_section())
    assert (
        str(change) == "model.batch_p2p_comm: True -> False (O07: pp=1: there is no other stage to send to)"
    )


def test_settings_of_gemms_print_as_their_number():
    overlap = CommOverlapConfig(tp_comm_overlap=True, tp_comm_overlap_cfg=preset(PRESET))
    model = model_section(tp=4, sequence_parallel=True)
    changes = overlap.setup(model, optimizer_section(), ddp_section(), transformer_engine=True)
    line = next(str(each) for each in changes if each.field == "model.tp_comm_overlap_cfg")
    assert line.startswith(
        f"model.tp_comm_overlap_cfg: None -> settings of {len(model.tp_comm_overlap_cfg)} GEMMs ("
    )


def test_returned_changes_match_the_sections():
    model, optimizer, ddp = model_section(pp=2, vp=2), optimizer_section(), ddp_section(sharded=True)
    sections = {"model": model, "optimizer": optimizer, "ddp": ddp}
    for change in CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=8).setup(model, optimizer, ddp):
        section, name = change.field.split(".")
        assert getattr(sections[section], name) == change.new


def test_tensor_parallel_overlap_writes_the_settings_of_each_gemm():
    model = model_section(tp=4, sequence_parallel=True)
    config = CommOverlapConfig(
        tp_comm_overlap=True, tp_comm_overlap_cfg=preset(PRESET), tp_comm_bootstrap_backend="gloo"
    )
    assert warnings(config.setup(model, optimizer_section(), ddp_section(), transformer_engine=True)) == []
    assert model.tp_comm_overlap is True
    assert model.tp_comm_bootstrap_backend == "gloo"
    assert model.tp_comm_overlap_cfg["qkv_dgrad"] == {
        "num_sm": 4, "cga_size": 2, "set_sm_margin": False, "method": "bulk",
    }  # fmt: skip


def test_without_settings_the_values_of_the_model_are_kept():
    model = model_section(tp=4, sequence_parallel=True, tp_comm_overlap_cfg={"own": {}})
    CommOverlapConfig(tp_comm_overlap=True).setup(
        model, optimizer_section(), ddp_section(), transformer_engine=True
    )
    assert (model.tp_comm_overlap_cfg, model.tp_comm_bootstrap_backend) == ({"own": {}}, "nccl")


def test_rejection_is_returned_as_a_warning():
    changes = CommOverlapConfig(tp_comm_overlap=True).setup(
        model_section(), optimizer_section(), ddp_section(), transformer_engine=True
    )
    assert short(changes)[-1] == ("comm_overlap.tp_comm_overlap", True, False, "O02")
    assert warnings(changes) == [("comm_overlap.tp_comm_overlap", "O02")]


def test_rejection_for_one_model_does_not_affect_the_next():
    config = CommOverlapConfig(tp_comm_overlap=True)
    small, large = model_section(), model_section(tp=2, sequence_parallel=True)
    config.setup(small, optimizer_section(), ddp_section(), transformer_engine=True)
    config.setup(large, optimizer_section(), ddp_section(), transformer_engine=True)
    assert (small.tp_comm_overlap, large.tp_comm_overlap) == (False, True)


@pytest.mark.usefixtures("without_transformer_engine")
def test_transformer_engine_is_detected_by_default(monkeypatch, tmp_path):
    config, sections = CommOverlapConfig(tp_comm_overlap=True), (optimizer_section(), ddp_section())
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text("raise ImportError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert warnings(config.setup(model_section(tp=2, sequence_parallel=True), *sections)) == []


@pytest.mark.parametrize("holder", ["ddp", "optimizer"])
def test_either_section_may_enable_the_distributed_optimizer(holder):
    optimizer, ddp = optimizer_section(sharded=holder == "optimizer"), ddp_section(sharded=holder == "ddp")
    CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=2).setup(model_section(), optimizer, ddp)
    assert (optimizer.overlap_param_gather, ddp.overlap_param_gather, ddp.bucket_size) == (
        True,
        True,
        134217728,
    )


def test_without_the_distributed_optimizer_ddp_is_unchanged_and_a_request_is_a_warning():
    ddp = ddp_section(overlap_grad_reduce=True)
    before = deepcopy(ddp)
    config = CommOverlapConfig(tp_comm_overlap=False, overlap_param_gather=True, data_parallel_size=8)
    assert warnings(config.setup(model_section(), optimizer_section(), ddp)) == [
        ("comm_overlap.overlap_param_gather", "O22")
    ]
    assert ddp == before


def test_request_that_already_holds_is_no_warning():
    config = CommOverlapConfig(tp_comm_overlap=False, overlap_grad_reduce=True)
    assert (
        warnings(config.setup(model_section(), optimizer_section(), ddp_section(overlap_grad_reduce=True)))
        == []
    )


def test_request_that_no_section_can_hold_is_a_warning():
    config = CommOverlapConfig(tp_comm_overlap=False, bucket_size=5, data_parallel_size=1)
    bare = SimpleNamespace(use_distributed_optimizer=True)
    (warning,) = config.setup(model_section(batch_p2p_comm=False), SimpleNamespace(), bare)
    assert str(warning) == (
        "comm_overlap.bucket_size: 5 -> None (O20: cannot be stored, because no section has the field bucket_size)"
    )


def test_disabling_a_field_that_no_section_has_is_no_warning():
    config = CommOverlapConfig(tp_comm_overlap=False, delay_wgrad_compute=False)
    assert warnings(config.setup(model_section(), optimizer_section(), ddp_section())) == []


def test_none_is_never_copied():
    ddp = ddp_section(sharded=True, bucket_size=1000)
    CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=1).setup(
        model_section(), optimizer_section(), ddp
    )
    assert ddp.bucket_size == 1000


def test_one_namespace_serves_as_all_three_sections():
    args = SimpleNamespace(**vars(ddp_section(sharded=True)), **vars(model_section(tp=2)))
    changes = CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=2).setup(args, args, args)
    assert args.overlap_grad_reduce
    assert len(changes) == len({change.field.split(".")[1] for change in changes})


def test_value_set_on_a_section_is_kept():
    ddp, optimizer = ddp_section(sharded=True), optimizer_section()
    CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=8).setup(
        model_section(), optimizer, ddp, keep={"ddp.overlap_param_gather"}
    )
    assert (ddp.overlap_param_gather, optimizer.overlap_param_gather, ddp.overlap_grad_reduce) == (
        False,
        False,
        True,
    )


def test_undecided_fields_cannot_contradict():
    config, ddp = CommOverlapConfig(tp_comm_overlap=False, overlap_grad_reduce=True), ddp_section()
    changes = config.setup(model_section(), optimizer_section(), ddp, keep={"ddp.overlap_grad_reduce"})
    assert (warnings(changes), ddp.overlap_grad_reduce) == (
        [("comm_overlap.overlap_grad_reduce", "O22")],
        False,
    )


def test_contradicting_requests_are_an_error():
    config = CommOverlapConfig(tp_comm_overlap=False, overlap_grad_reduce=True, data_parallel_size=8)
    ddp = ddp_section(sharded=True)
    before = deepcopy(ddp)
    with pytest.raises(
        OverlapConflictError, match=r"ddp.overlap_grad_reduce.*comm_overlap.overlap_grad_reduce"
    ):
        config.setup(model_section(), optimizer_section(), ddp, keep={"ddp.overlap_grad_reduce"})
    assert ddp == before


def test_strict_rejection_is_an_error_and_nothing_is_written():
    model, ddp = model_section(pp=2, vp=2), ddp_section()
    before = deepcopy((model, ddp))
    config = CommOverlapConfig(tp_comm_overlap=True, overlap_grad_reduce=True)
    with pytest.raises(
        OverlapRejectedError, match=r"(?s)\[O02\] comm_overlap.tp_comm_overlap.*\[O22\] comm_overlap"
    ):
        config.setup(model, optimizer_section(), ddp, transformer_engine=True, strict=True)
    assert (model, ddp) == before


def test_strict_writes_available_options():
    model = model_section(tp=2, sequence_parallel=True)
    config = CommOverlapConfig(tp_comm_overlap=True)
    config.setup(model, optimizer_section(), ddp_section(), transformer_engine=True, strict=True)
    assert model.tp_comm_overlap is True


def test_model_without_parallel_sizes_is_rejecting_rules():
    with pytest.raises(AttributeError, match=r"model.tensor_model_parallel_size: is missing, because Simple"):
        CommOverlapConfig(tp_comm_overlap=False).setup(ddp_section(), optimizer_section(), ddp_section())


def test_mappings_serve_as_sections():
    model, ddp = vars(model_section(pp=2, vp=2)), vars(ddp_section(sharded=True))
    CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=2).setup(model, {}, ddp)
    assert (model["overlap_p2p_comm"], ddp["bucket_size"]) == (True, 134217728)


def command_line(**fields):
    """Return the overlap arguments as parsed by Megatron-LM."""
    return Namespace(
        tensor_model_parallel_size=4, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2,
        sequence_parallel=True, tp_comm_overlap=False, tp_comm_overlap_cfg=None, tp_comm_bootstrap_backend="nccl",
        overlap_p2p_comm=False, use_distributed_optimizer=True, overlap_grad_reduce=False,
        overlap_param_gather=False, align_param_gather=False, ddp_bucket_size=None, ddp_num_buckets=None, **fields,
    )  # fmt: skip


def test_megatron_lm_namespace_receives_the_settings_under_its_field_names():
    args = command_line()
    changes = CommOverlapConfig(tp_comm_overlap=True, data_parallel_size=2).setup(
        args, args, args, transformer_engine=True
    )
    assert short(changes) == [
        ("model.tp_comm_overlap", False, True, "O15"),
        ("model.overlap_p2p_comm", False, True, "O05"),
        ("optimizer.ddp_bucket_size", None, 134217728, "O12"),
        ("optimizer.overlap_grad_reduce", False, True, "O12"),
        ("optimizer.overlap_param_gather", False, True, "O12"),
        ("optimizer.align_param_gather", False, True, "O13"),
        ("model.tp_comm_overlap_cfg", None, None, "O20"),
    ]
    assert args.ddp_bucket_size == 134217728


def test_megatron_lm_namespace_never_receives_settings_for_a_path_field():
    args = command_line()
    config = CommOverlapConfig(tp_comm_overlap=True, tp_comm_overlap_cfg=preset(PRESET), data_parallel_size=2)
    (warning,) = (
        change
        for change in config.setup(args, args, args, transformer_engine=True)
        if change.severity == "warning"
    )
    assert "takes the path of a YAML file" in warning.why
    assert args.tp_comm_overlap_cfg is None


def test_number_of_buckets_on_the_command_line_is_kept():
    args = command_line()
    args.ddp_num_buckets = 4
    CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=2).setup(args, args, args)
    assert args.ddp_bucket_size is None


REQUESTS = st.fixed_dictionaries(
    {"tp_comm_overlap": st.booleans(), "data_parallel_size": st.integers(1, 8)},
    optional={
        "overlap_grad_reduce": st.booleans(),
        "overlap_param_gather": st.booleans(),
        "align_param_gather": st.booleans(),
        "bucket_size": st.integers(1, 10**9),
        "wgrad_deferral_limit": st.integers(0, 4),
    },
)
LAYOUTS = st.fixed_dictionaries(
    {
        "tp": st.integers(1, 4),
        "pp": st.integers(1, 4),
        "vp": st.none() | st.integers(1, 3),
        "sequence_parallel": st.booleans(),
    }
)


@given(requests=REQUESTS, layout=LAYOUTS, sharded=st.booleans(), transformer_engine=st.booleans())
def test_setup_does_not_modify_its_section_and_is_idempotent(requests, layout, sharded, transformer_engine):
    config, requested = CommOverlapConfig(**requests), CommOverlapConfig(**requests)
    sections = (model_section(**layout), optimizer_section(), ddp_section(sharded=sharded))
    first = config.setup(*sections, transformer_engine=transformer_engine)
    second = config.setup(*sections, transformer_engine=transformer_engine)
    assert config == requested
    assert second == [change for change in first if change.severity == "warning"]


@given(requests=REQUESTS, layout=LAYOUTS)
def test_data_parallel_request_takes_precedence_with_the_distributed_optimizer(requests, layout):
    ddp = ddp_section(sharded=True)
    CommOverlapConfig(**requests).setup(model_section(**layout), optimizer_section(), ddp)
    assert {name: value for name, value in vars(ddp).items() if name in requests} == {
        name: value for name, value in requests.items() if hasattr(ddp, name)
    }


def test_on_the_command_line_of_megatron_lm_missing_gemm_settings_are_reported():
    arguments = Namespace(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=1,
        virtual_pipeline_model_parallel_size=None,
        context_parallel_size=1,
        sequence_parallel=True,
        tp_comm_overlap=False,
        tp_comm_overlap_cfg=None,
        use_distributed_optimizer=False,
    )
    section = CommOverlapConfig(tp_comm_overlap=True, data_parallel_size=1)
    changes = section.setup(arguments, arguments, arguments, transformer_engine=True)
    (note,) = [change for change in changes if change.field == "model.tp_comm_overlap_cfg"]
    assert (note.old, note.new, note.severity) == (None, None, "info")
    assert note.why.startswith("no settings are given, so Transformer Engine uses its defaults")
    assert section.setup(arguments, arguments, arguments, transformer_engine=True, strict=True) == [note]
