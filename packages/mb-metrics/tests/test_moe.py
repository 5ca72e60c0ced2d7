from dataclasses import dataclass, field
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from mb_metrics import expert_metrics, prediction_metrics  # noqa: E402
from mb_metrics.flops.model_shape import FlopsModelShape  # noqa: E402
from mb_metrics.recorder.auxiliary_losses import expert_layers, tracked_names  # noqa: E402

MODEL = {"num_layers": 4, "num_moe_experts": 8, "moe_aux_loss_coeff": 0.01}


@dataclass
class Entry:
    values: torch.Tensor
    reduce_group: None = None
    avg_group: None = None
    needs_dp_avg: bool = True


@dataclass
class Tracker:
    metrics: dict = field(default_factory=dict)
    cleared: int = 0

    def clear(self):
        self.cleared += 1


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("aux_loss", ["load_balancing_loss"]),
        ("seq_aux_loss", ["seq_load_balancing_loss"]),  # "aux_loss" is in this name, and in the next
        ("global_aux_loss", ["global_load_balancing_loss"]),
        ("none", []),
        ("sinkhorn", []),
    ],
)
def test_a_kind_of_balancing_reports_its_own_loss_only(kind, names):
    assert tracked_names(FlopsModelShape(MODEL | {"moe_router_load_balancing_type": kind})) == names


def test_several_kinds_have_a_coefficient_each_and_z_loss_comes_last():
    model = MODEL | {
        "moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"],
        "moe_aux_loss_coeff": [0.0, 0.1],
        "moe_z_loss_coeff": 1e-3,
    }
    assert tracked_names(FlopsModelShape(model)) == ["seq_load_balancing_loss", "z_loss"]
    assert tracked_names(FlopsModelShape(MODEL | {"moe_aux_loss_coeff": 0.0})) == []


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({}, 4),
        ({"moe_layer_freq": 2}, 2),
        ({"moe_layer_freq": [0, 1, 1, 1], "mtp_num_layers": 2}, 5),
        ({"moe_layer_freq": [1, 1, 1, 0], "mtp_num_layers": 2}, 3),
        ({"hybrid_layer_pattern": "ME*E"}, 2),
    ],
)
def test_the_mean_is_over_layers_with_experts(change, layers):
    assert expert_layers(FlopsModelShape(MODEL | change)) == layers


def test_losses_are_means_over_layers_and_microbatches_and_the_tracker_is_reset():
    tracker = Tracker({"load_balancing_loss": Entry(torch.tensor([2.0, 4.0, 6.0, 8.0])), "other": None})
    found = expert_metrics(
        MODEL | {"moe_per_layer_logging": True}, tracker, microbatches=2, pp_group=None, dp_group=None
    )
    assert {name: float(value) for name, value in found.items()} == {
        "load_balancing_loss": 2.5,
        "moe/load_balancing_loss_layer_0": 1.0,
        "moe/load_balancing_loss_layer_1": 2.0,
        "moe/load_balancing_loss_layer_2": 3.0,
        "moe/load_balancing_loss_layer_3": 4.0,
    }
    assert tracker.cleared == 1


def test_a_rank_without_experts_reports_what_there_is():
    found = expert_metrics(MODEL, Tracker(), microbatches=1, pp_group=None, dp_group=None)
    assert found == {"load_balancing_loss": torch.tensor(0.0)}


def test_the_layers_of_a_hybrid_include_those_of_its_multi_token_prediction():
    hybrid = MODEL | {"hybrid_layer_pattern": "M*E-/*E/*E", "moe_per_layer_logging": True}
    found = expert_metrics(hybrid, Tracker(), microbatches=1, pp_group=None, dp_group=None)
    assert [*found][-1] == "moe/load_balancing_loss_layer_5"  # as on stages whose tracker has the six layers
    assert FlopsModelShape(hybrid).prediction_depths == 2


def test_predictions_come_under_their_names():
    class Predictions:
        def track_mtp_metrics(self, loss_scale, iteration, writer):
            writer.add_scalar("mtp_1 loss", torch.tensor(6.0) * loss_scale, iteration)

    assert prediction_metrics(Predictions(), microbatches=3) == {"mtp_1 loss": torch.tensor(2.0)}


def test_on_megatrons_model_every_rank_of_every_stage_gets_the_same_losses(four_ranks):
    mb_host = pytest.importorskip("mb_host")
    measure = mb_host.function_in(Path(__file__).with_name("moe_ranks.py"), "measure")
    found = four_ranks.run(measure)
    losses = [
        {name: value for name, value in each.items() if name.endswith("loss") and "mtp" not in name}
        for each in found
    ]
    assert losses == [pytest.approx(losses[0], rel=1e-6)] * 4
    assert losses[0].keys() == {"load_balancing_loss", "z_loss"}
    assert losses[0]["load_balancing_loss"] > 0.5
    # The stage with the last layers predicts: ranks 2 and 3.
    assert [sorted(name for name in each if "mtp" in name) for each in found] == [[], []] + 2 * [
        ["mtp_1 loss", "mtp_1_acceptance_rate", "mtp_1_cumulative_acceptance_rate"]
    ]
    assert found[2]["mtp_1 loss"] == pytest.approx(found[3]["mtp_1 loss"])
    assert found[0]["load_balancing_loss"] == pytest.approx(
        found[0]["by megatron on its own stage"], rel=1e-5
    )
