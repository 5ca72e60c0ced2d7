import math

import pytest

torch = pytest.importorskip("torch")

from mb_metrics import (  # noqa: E402
    GradientNorms,
    NormGroups,
    calc_dtensor_params_l2_norm,
    calc_params_l2_norm,
    param_is_not_shared,
    report_l2_norm_grad,
)


def chunk(*values, gradients=()):
    module = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(value)) for value in values])
    for parameter, gradient in zip(module, gradients, strict=False):
        parameter.main_grad = torch.tensor(gradient)
    return module


def test_the_norm_of_parameters_is_torchs_over_all_chunks():
    assert calc_params_l2_norm([chunk([1.0, 2.0], [2.0]), chunk([4.0])]) == pytest.approx(5.0)
    assert calc_params_l2_norm(chunk([3.0, 4.0])) == 5.0
    assert calc_params_l2_norm([]) == 0.0


def test_the_copy_of_tied_embeddings_counts_once():
    model = chunk([3.0], [3.0], [4.0])
    model[1].shared = True
    assert [param_is_not_shared(parameter) for parameter in model] == [True, False, True]
    assert calc_params_l2_norm(model) == 5.0


def test_of_half_precision_weights_the_optimizers_copy_counts_unless_it_is_not_wanted():
    model = chunk([1.0], [2.0]).to(torch.bfloat16)
    model[0].main_param = torch.tensor([3.0])
    model[1].main_param = torch.tensor([4.0])
    assert calc_params_l2_norm(model) == 5.0
    assert calc_params_l2_norm(model, force_create_fp32_copy=True) == pytest.approx(math.sqrt(5))


def test_a_rank_without_a_part_of_a_sharded_copy_adds_nothing():
    model = chunk([3.0], [2.0]).to(torch.bfloat16)
    model[0].main_param, model[0].main_param_sharded = torch.tensor([3.0]), True
    model[1].main_param, model[1].main_param_sharded = None, True
    assert calc_params_l2_norm(model) == 3.0


def test_a_large_norm_of_half_precision_weights_does_not_overflow():
    model = chunk([60000.0, 60000.0]).to(torch.float16)
    assert calc_params_l2_norm(model) == pytest.approx(60000 * math.sqrt(2), rel=1e-3)


def test_the_gradient_norm_of_two_chunks_counts_each_gradient_once():
    # A sum that is not reset between chunks, and that includes the first global, gives 6.56.
    model = [chunk([0.0], gradients=[[3.0]]), chunk([0.0], gradients=[[4.0]])]
    assert report_l2_norm_grad(model) == {
        "l2_norm/grad/chunk0.0": 3.0,
        "l2_norm/grad/chunk1.0": 4.0,
        "l2_norm/grad/global": 5.0,
    }


def test_gradients_of_plain_torch_count_and_frozen_and_unused_parameters_do_not():
    model = chunk([1.0], [1.0], [1.0])
    model[0].grad = torch.tensor([-2.0])
    model[2].requires_grad = False
    assert report_l2_norm_grad(model) == {"l2_norm/grad/0": 2.0, "l2_norm/grad/global": 2.0}


def test_groups_are_read_from_a_collection_by_megatrons_names():
    class Collection:
        tp, pp, dp_cp, intra_dp_cp, ep, expt_tp = "tp", "pp", "all", "some", "ep", "etp"

    assert NormGroups.of(Collection()) == NormGroups(tp="tp", pp="pp", dp="some", ep="ep", expert_tp="etp")


def test_fsdp_communication_is_stopped_and_its_parameters_must_be_dtensors():
    class Wrapped(torch.nn.Linear):
        stopped = False

        def stop_communication(self):
            self.stopped = True

    model = Wrapped(2, 2)
    with pytest.raises(RuntimeError, match="weight is a Parameter, not a DTensor"):
        calc_params_l2_norm(model, use_megatron_fsdp=True)
    assert model.stopped


def test_plain_tensors_are_no_dtensors():
    with pytest.raises(RuntimeError, match=r"Tensor of shape \(2,\) is not a DTensor"):
        calc_dtensor_params_l2_norm([torch.ones(2)])
    assert calc_dtensor_params_l2_norm([]) == 0.0


class Layer(torch.nn.Module):
    """A layer with its number in the complete model, from 1, as in Megatron."""

    def __init__(self, number, gradient):
        super().__init__()
        self.layer_number = number
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.weight.grad = torch.tensor(gradient)


def test_gradient_norms_have_the_names_of_the_complete_model_and_are_unscaled():
    chunks = [
        torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Layer(number, [3.0 * number, 4.0 * number])])})
        for number in (2, 4)  # of two chunks of a second pipeline stage
    ]
    norms = GradientNorms(chunks)(loss_scale=torch.tensor(2.0))
    assert {name: float(norm) for name, norm in norms.items()} == {
        "l2_norm/grad/layers.1.weight": 5.0,
        "l2_norm/grad/layers.3.weight": 10.0,
        "l2_norm/grad/global": pytest.approx(math.sqrt(125)),
    }


def test_a_gradient_that_overflowed_does_not_hide_behind_a_mask():
    model = chunk([1.0, 2.0], [2.0])
    (first, second) = model.parameters()
    first.grad, second.grad = torch.tensor([math.nan, 0.0]), torch.tensor([2.0])
    first.shared = True  # the copy of a tied embedding, which does not count
    report = report_l2_norm_grad(model)
    assert math.isnan(report["l2_norm/grad/0"])
    assert report["l2_norm/grad/global"] == 2.0


def test_weights_count_where_the_optimizer_keeps_all_main_parameters_itself():
    model = chunk([1.0], [2.0]).to(torch.bfloat16)
    for parameter in model:  # as Megatron's distributed optimizer leaves them if it is precision-aware
        parameter.main_param, parameter.main_param_sharded = None, True
    assert calc_params_l2_norm(model) == pytest.approx(math.sqrt(5))
