"""Configuration and GPU, as the conditions of fast settings read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mb_config.container.field_access import get_field, has_field
from mb_config.perf.names import BLACKWELL, HOPPER
from mb_config.preflight.module_layouts import has_parallelism_per_module
from mb_config.resolve.precision_table import precision_field
from mb_schema.gpu_capabilities import CAPABILITIES

_DENSE_ADAM = ("adam", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfTarget:
    """Configuration to be made fast on a GPU. Nothing is modified."""

    config: Any
    """The sections."""
    gpu: str
    """Short name."""
    precision: str
    """Suffix of the value of `perf`; empty: BF16, or that of the recipe."""
    facts: Mapping[str, object]
    """Facts of the machine."""

    def get(self, path: str) -> Any:
        """Return the value at `section.field`; None if there is no such field."""
        return get_field(self.config, path)

    def model(self, name: str) -> Any:
        """Return a field of the model; None if there is no such field."""
        return self.get(f"model.{name}")

    def size(self, name: str) -> int:
        """Return a parallel size of the model, at least 1."""
        degree = self.model(f"{name}_model_parallel_size")
        return degree if isinstance(degree, int) and degree > 1 else 1

    @property
    def hopper(self) -> bool:
        """Whether the GPU is of the Hopper generation."""
        return HOPPER <= CAPABILITIES[self.gpu] < BLACKWELL

    @property
    def blackwell(self) -> bool:
        """Whether the GPU is of the Blackwell generation."""
        return CAPABILITIES[self.gpu] >= BLACKWELL

    @property
    def eight_bits(self) -> bool:
        """Whether matrix products are computed in eight bits or fewer."""
        return bool(self.precision) or self.computes_in("fp8") or self.computes_in("fp4")

    def computes_in(self, name: str) -> bool:
        """Return whether a format such as "bf16" is set, in the model or by the precision recipe."""
        return bool(precision_field(self.config.mixed_precision, name) or self.model(name))

    @property
    def reads_losses_at_once(self) -> bool:
        """Whether the host reads a loss or a gradient within the forward and backward passes."""
        machine = self.get("rerun_state_machine.rerun_mode") not in (None, "disabled")
        nan = self.get("rerun_state_machine.check_for_nan_in_loss")
        immediately = self.get("rerun_state_machine.check_loss_immediately")
        spiky = self.get("rerun_state_machine.check_for_spiky_loss")
        gradients = self.get("ddp.check_for_nan_in_grad") or self.get("ddp.check_for_large_grads")
        return bool(spiky or gradients or (nan and (immediately or machine)))

    @property
    def float32(self) -> bool:
        """Whether no precision is set, so that the model computes in float32."""
        return self.config.mixed_precision is None and not (self.model("bf16") or self.model("fp16"))

    @property
    def one_layout(self) -> bool:
        """Whether all modules of the model have one parallel layout and one precision."""
        return not has_parallelism_per_module(self.config.model)

    @property
    def fsdp(self) -> bool:
        """Whether Megatron-FSDP shards the model."""
        return bool(self.get("ddp.use_megatron_fsdp"))

    @property
    def adam(self) -> bool:
        """Whether the optimizer is Adam with its state on the GPU."""
        offloaded = self.get("optimizer.optimizer_cpu_offload")
        return self.get("optimizer.optimizer") in _DENSE_ADAM and not offloaded

    @property
    def fine_tuning(self) -> bool:
        """Whether the dataset has samples with masked prompts, or adapters are trained."""
        answers = has_field(self.config, "dataset.dataset_kwargs")
        return answers or self.get("dataset.dataset_root") is not None or self.config.peft is not None

    @property
    def images(self) -> bool:
        """Whether the model reads images, whose patches are inserted into the text by position."""
        return self.model("image_size") is not None

    @property
    def engine(self) -> bool:
        """Whether the layers are those of Transformer Engine, or may be."""
        missing = self.facts.get("transformer_engine") is False
        return not missing and self.model("transformer_impl") != "local"

    @property
    def data_parallel(self) -> int:
        """Number of replicas, 1 if it is not known."""
        world, ranks = self.facts.get("world_size"), 1
        for name in ("tensor", "pipeline", "context"):
            ranks *= self.size(name)
        return max(1, world // ranks) if isinstance(world, int) else 1

    def variable(self, name: str) -> str | None:
        """Return an environment variable of the shell or of the section `env_vars`; None if it is not set."""
        shell = self.facts.get("env")
        if isinstance(shell, Mapping) and name in shell:
            return str(shell[name])
        value = self.config.env_vars.get(name)
        return None if value is None else str(value)
