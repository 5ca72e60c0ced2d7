"""GPTs with experts, latent attention and further tokens through the main job; half precision with a moving scale."""

import pytest
from runs import losses, metrics, train_here

SHAPES = (
    "model.num_layers",
    "model.hidden_size",
    "model.ffn_hidden_size",
    "model.num_attention_heads",
    "model.num_query_groups",
)
EXPECTED = {
    "moe_tiny": {"load_balancing_loss", "z_loss"},
    "mla_tiny": {"seq_load_balancing_loss", "mtp_1 loss"},
    "mtp_tiny": {"mtp_1 loss", "mtp_2 loss"},
}
"""Metrics of a recipe in addition to those of every model."""


@pytest.mark.parametrize("name", EXPECTED)
def test_a_tiny_gpt_learns_and_records_its_auxiliary_losses(name, overrides, tmp_path):
    kept = [word for word in overrides if not word.startswith(SHAPES)]
    out = tmp_path / name
    assert train_here([name, *kept, "train.train_iters=15"], out).reason == "finished"
    seen = losses(out)
    assert seen[15] < 0.9 * seen[1]
    assert EXPECTED[name] <= metrics(out)[9].keys()


def test_half_precision_lowers_its_scale_and_skips_steps(overrides, tmp_path):
    half = ["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=16777216", "optimizer.hysteresis=1"]
    out = tmp_path / "half"
    assert train_here([*overrides, *half, "train.train_iters=40"], out).reason == "finished"
    rows = [row for row in metrics(out) if "lm loss" in row]
    skipped = [row["step"] for row in rows if "grad-norm" not in row]
    assert 1 in skipped
    assert len(skipped) < 20
    assert rows[-1]["lm loss"] < 0.95 * rows[0]["lm loss"]
    assert (
        f"number of skipped iterations:   {sum(step <= 5 for step in skipped)}"
        in (out / "log.txt").read_text()
    )
