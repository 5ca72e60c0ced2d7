"""Small hybrid model, trained on each rank by the parity tests."""

import dataclasses

import torch
from host_gpt import SEQUENCE, VOCABULARY, Trainer, model_config
from host_gpt import train as train_any
from host_gpt import write_start as write_start_of_any
from host_layouts import Curve, Layout
from megatron.core import parallel_state
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_host.megatron.hybrid import host_hybrid_spec


class HybridTrainer(Trainer):
    """Model, optimizer and step of one rank, for the layers of `layout.pattern`."""

    def _build_config(self) -> TransformerConfig:
        main, *ahead = self.layout.pattern.split("/")
        like_gpt = model_config(dataclasses.replace(self.layout, pattern=None))
        own = {
            "num_layers": len(main.replace("|", "")),
            "mtp_num_layers": len(ahead) or None,
            "is_hybrid_model": True,
            "mamba_state_dim": 16,
            "mamba_head_dim": 16,
            "mamba_num_groups": 2,
            "mamba_num_heads": 8,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        }
        made = {
            "init_method",
            "output_layer_init_method",
            "embedding_init_method",
        }  # derived from the other fields
        fields = {item.name for item in dataclasses.fields(TransformerConfig) if item.init} - made
        return TransformerConfig(**{**{name: getattr(like_gpt, name) for name in fields}, **own})

    def _build_chunk(self, vp_stage: int) -> torch.nn.Module:
        groups, stage = ProcessGroupCollection.use_mpu_process_groups(), vp_stage if self.layout.vp else None
        place = {"ignore_virtual": False, "vp_stage": stage}
        chunk = HybridModel(
            config=self.config,
            hybrid_stack_spec=host_hybrid_spec(self.config),
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            hybrid_layer_pattern=self.layout.pattern,
            pre_process=parallel_state.is_pipeline_first_stage(**place),
            post_process=parallel_state.is_pipeline_last_stage(**place),
            position_embedding_type="rope",
            pg_collection=groups,
            vp_stage=stage,
        )
        return chunk.cuda(torch.cuda.current_device())


def write_start(folder: str, layout: Layout) -> None:
    """Save the initial weights."""
    write_start_of_any(folder, layout, HybridTrainer)


def train(folder: str, layout: Layout, steps: int) -> Curve:
    """Train from the weights in `folder`."""
    return train_any(folder, layout, steps, HybridTrainer)


def norms_of_gated_delta(folder: str, layout: Layout, steps: int) -> list[float]:
    """Train and return the weights of the gated-delta layers' norms, which are replicated on all ranks."""
    trainer = HybridTrainer(layout)
    trainer.load(folder)
    for number in range(steps):
        trainer.step(number)
    named = trainer.chunks[0].named_parameters()
    return [value for name, weight in named if "out_norm" in name for value in weight.tolist()]


def both_ways_of_a_mixer(has_norm: bool) -> float:
    """Return the largest difference between the two ways in which Megatron computes a Mamba layer."""
    mixer = HybridTrainer(Layout(pattern="M")).chunks[0].decoder.layers[0].mixer
    mixer.rmsnorm = has_norm
    torch.manual_seed(0)
    for parameter in (mixer.D, mixer.dt_bias):
        torch.nn.init.normal_(parameter)
    hidden = torch.randn(SEQUENCE, 2, mixer.config.hidden_size)
    outputs = []
    for mixer.use_mem_eff_path in (True, False):
        outputs.append(mixer(hidden)[0])
    assert outputs[0].abs().max() > 1e-3
    return ((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()).item()
