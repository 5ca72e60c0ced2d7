import torch

from mb_models import masked_next_token_loss


def test_the_loss_counts_only_unmasked_tokens():
    losses = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    mask = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    loss_sum, tokens, report = masked_next_token_loss(mask, losses)
    assert (loss_sum.item(), tokens.item(), tokens.dtype) == (8.0, 3, torch.int)
    assert {name: value.tolist() for name, value in report.items()} == {"lm loss": [8.0, 3.0]}


def test_the_report_keeps_its_value_when_the_schedule_divides_in_place():
    loss_sum, _, report = masked_next_token_loss(torch.ones(2, 2), torch.ones(2, 2))
    loss_sum /= 4
    assert report["lm loss"].tolist() == [4.0, 4.0]


def test_gradients_reach_the_losses_and_not_the_report():
    losses = torch.ones(1, 2, requires_grad=True)
    loss_sum, _, report = masked_next_token_loss(torch.tensor([[1.0, 0.0]]), losses)
    loss_sum.backward()
    assert (losses.grad.tolist(), report["lm loss"].requires_grad) == ([[1.0, 0.0]], False)


def test_half_precision_losses_are_summed_in_float32():
    losses = torch.full((1, 4096), 1.0, dtype=torch.bfloat16)
    loss_sum, _, _ = masked_next_token_loss(torch.ones(1, 4096), losses)
    assert (loss_sum.dtype, loss_sum.item()) == (torch.float32, 4096.0)


def test_inspect_loss_receives_each_sum():
    seen = []
    masked_next_token_loss(
        torch.ones(1, 2), torch.ones(1, 2), inspect_loss=lambda loss: seen.append(loss.item())
    )
    assert seen == [2.0]
