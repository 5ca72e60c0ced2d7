"""The host's Mamba 2 matches an independent implementation."""

import pytest
import torch

from mb_host.megatron.kernels import GatedRMSNorm, mamba_split_conv1d_scan_combined

transformers = pytest.importorskip("transformers")
mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")


@pytest.mark.parametrize("groups", [1, 2])
def test_the_hosts_mamba_is_transformers_mamba2(groups):
    torch.manual_seed(1)
    config = transformers.Mamba2Config(
        hidden_size=32,
        num_heads=8,
        head_dim=8,
        n_groups=groups,
        state_size=16,
        conv_kernel=4,
        chunk_size=8,
        expand=2,
        use_bias=False,
        time_step_limit=(0.0, float("inf")),
    )
    mixer = mamba2.Mamba2Mixer(config, layer_idx=0).eval()
    with torch.no_grad():
        for parameter, (low, high) in {
            mixer.dt_bias: (-2, 1),
            mixer.A_log: (0, 2),
            mixer.D: (0.5, 1.5),
            mixer.conv1d.bias: (-1, 1),
        }.items():
            parameter.uniform_(low, high)
        inputs = torch.randn(2, 37, 32)
        theirs = mixer(inputs)
        norm = GatedRMSNorm(64, eps=mixer.norm.variance_epsilon, group_size=64 // groups)
        norm.weight.copy_(mixer.norm.weight)
        scanned = mamba_split_conv1d_scan_combined(
            mixer.in_proj(inputs),
            mixer.conv1d.weight[:, 0],
            mixer.conv1d.bias,
            mixer.dt_bias,
            -mixer.A_log.exp(),
            mixer.D,
            8,
            headdim=8,
            ngroups=groups,
        )
        ours = mixer.out_proj(norm(scanned))
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
