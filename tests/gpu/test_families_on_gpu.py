"""Every family's small recipe learns on Transformer Engine's layers, in bfloat16, in 8 bits and in CUDA graphs."""

import os

import pytest
from on_gpu import BF16, ENGINE, ON_GPU, TEN_STEPS, learned, log_of, needs, needs_capability
from runs import losses, train_here

pytestmark = [*ON_GPU, ENGINE]
SMALL = {
    "gpt": ["gpt_tiny"],
    "query and key norms": ["gpt_tiny", "model.qk_layernorm=true", "model.add_bias_linear=true"],
    "norms after the layers": ["gpt_tiny", "model.norm_position=post"],
    "one norm without bias": [
        "gpt_tiny",
        "model.residual_branches=parallel_shared_norm",
        "model.normalization=LayerNorm",
        "model.layernorm_bias=false",
    ],
    "experts": ["moe_tiny"],
    "grouped experts": ["moe_tiny", "model.moe_grouped_gemm=true", "model.moe_permute_fusion=true"],
    "latent attention": ["mla_tiny", "model.moe_grouped_gemm=true"],
    "further tokens": ["mtp_tiny"],
    "T5": ["t5_tiny"],
    "images": ["mimo_tiny"],
    "hybrid": ["hybrid_tiny"],
}
KERNELS = {"hybrid": needs("mamba_ssm", "fla")}
FP8 = {
    "delayed": ("bf16_with_fp8_delayed_scaling_mixed", 9),
    "current": ("bf16_with_fp8_current_scaling_mixed", 9),
    "blocks": ("bf16_with_fp8_subchannel_scaling_mixed", 9),
    "mxfp8": ("bf16_with_mxfp8_mixed", 10),
}
STEPS = [*TEN_STEPS, "train.global_batch_size=8", "train.micro_batch_size=4", "logger.log_interval=5"]
STEPS += ["scheduler.lr_warmup_iters=2"]
GRAPHS = ["model.cuda_graph_warmup_steps=3"]


@pytest.fixture
def text(overrides):
    """The words of `overrides` that name texts, for recipes that keep their own shape."""
    return [word for word in overrides if word.startswith("dataset.") and "seq_length" not in word]


def in_eight_bits(precision):
    """The words of a precision; weights in 8 bits need the distributed optimizer."""
    return [f"mixed_precision={FP8[precision][0]}", "ddp.use_distributed_optimizer=true"]


def words_of(name, text):
    return [*SMALL[name], *([] if name == "images" else text), *STEPS, "mixed_precision=bf16_mixed"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=KERNELS.get(name, ())) for name in SMALL])
def test_a_family_learns_in_bf16(name, text, tmp_path):
    train_here(words_of(name, text), tmp_path / "run")
    assert learned(tmp_path / "run")
    assert "Transformer Engine layers" in log_of(tmp_path / "run")


@pytest.mark.parametrize("peft", ["lora", "canonical_lora", "dora"])
def test_adapters_learn(peft, overrides, tmp_path):
    train_here([*overrides, *STEPS, *BF16], tmp_path / "base")
    base = f"checkpoint.pretrained_checkpoint={tmp_path / 'base' / 'checkpoints'}"
    words = [*overrides, *STEPS, *BF16, base, f"peft={peft}", "peft.dim=4", "optimizer.lr=0.01"]
    train_here(words, tmp_path / "run")
    assert learned(tmp_path / "run")


@pytest.mark.parametrize(
    ("precision", "name"),
    [
        *(pytest.param(kind, "gpt", marks=needs_capability(major)) for kind, (_, major) in FP8.items()),
        pytest.param("current", "grouped experts", marks=needs_capability(9)),
    ],
)
def test_eight_bits_learn_and_resume(precision, name, text, tmp_path):
    words = [*words_of(name, text)[:-1], *in_eight_bits(precision)]
    if precision == "mxfp8":
        words.append("comm_overlap.overlap_param_gather=true")
    train_here([*words, "train.exit_interval=5"], tmp_path / "run")
    train_here(words, tmp_path / "run", resume_with_changes=True)
    assert learned(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "graphs"),
    [
        ("gpt", ["model.cuda_graph_impl=transformer_engine"]),
        ("gpt", ["model.cuda_graph_impl=transformer_engine", "model.cuda_graph_modules=[attn]"]),
        (
            "experts",
            ["model.cuda_graph_impl=transformer_engine", "model.cuda_graph_modules=[attn,moe_router]"],
        ),
        ("gpt", ["model.cuda_graph_impl=full_iteration"]),
    ],
    ids=["layers", "attention", "attention and routers", "whole step"],
)
def test_cuda_graphs_compute_what_the_layers_do(name, graphs, text, tmp_path):
    train_here(words_of(name, text), tmp_path / "eager")
    train_here([*words_of(name, text), *graphs, *GRAPHS], tmp_path / "graphs")
    assert learned(tmp_path / "graphs")
    assert losses(tmp_path / "graphs") == pytest.approx(losses(tmp_path / "eager"), rel=2e-2)


@pytest.mark.parametrize("precision", [pytest.param("current", marks=needs_capability(9))])
def test_graphs_in_eight_bits(precision, text, tmp_path):
    words = [*words_of("gpt", text)[:-1], *in_eight_bits(precision)]
    train_here([*words, "model.cuda_graph_impl=transformer_engine", *GRAPHS], tmp_path / "run")
    assert learned(tmp_path / "run")


@pytest.mark.parametrize("kernel", ["flash", "fused", "unfused"])
def test_attention_kernels_agree(kernel, text, tmp_path):
    if kernel == "flash":
        pytest.importorskip("flash_attn", reason="flash-attn is not installed")
    train_here(words_of("gpt", text), tmp_path / "auto")
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        os.environ.pop(name, None)  # Megatron set them for the run before, and refuses others
    train_here([*words_of("gpt", text), f"model.attention_backend={kernel}"], tmp_path / "run")
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "auto"), rel=2e-2)
