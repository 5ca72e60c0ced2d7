"""Packages of the repository, with their permitted imports and the time limits of importing them."""

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package: its module, and the seconds that importing it may take."""

    module: str
    import_budget_seconds: float = 0.1
    torch_on_import: bool = False

    @property
    def distribution(self) -> str:
        """Name on the package index."""
        return self.module.replace("_", "-")

    @property
    def source(self) -> Path:
        """Folder of the importable package, wherever it is installed."""
        spec = importlib.util.find_spec(self.module)
        assert spec is not None
        assert spec.submodule_search_locations
        return Path(spec.submodule_search_locations[0])

    def declared(self) -> set[str]:
        """Return the names of the distributions that the package declares, including extras."""
        lines = importlib.metadata.requires(self.distribution) or []
        return {re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower() for line in lines}


PACKAGES = [
    Package(module="mb_schema", import_budget_seconds=0.05),
    Package(module="mb_config", import_budget_seconds=0.3),
    Package(module="mb_plan"),
    Package(module="mb_data"),
    Package(module="mb_loop"),
    Package(module="mb_overlap"),
    Package(module="mb_checkpoint"),
    Package(module="mb_metrics"),
    Package(module="mb_resilience"),
    Package(module="mb_models"),
    Package(module="mb_launch"),
    Package(module="mb_verify"),
    Package(module="mb_guard"),
    Package(module="mb_host"),
]

DOORS = {
    "megatron",
    "transformer_engine",
    "nvidia_resiliency_ext",
    "wandb",
    "mlflow",
    "tensorboard",
    "comet_ml",
}
"""Top-level modules that `import mb_x` must never load."""

MODULE_TO_DISTRIBUTION = {
    "yaml": "pyyaml",
    "dataclasses_json": "dataclasses-json",
    "hydra": "hydra-core",
    "omegaconf": "hydra-core",
    "megatron": "megatron-core",
    "transformer_engine": "transformer-engine",
    "pynvml": "nvidia-ml-py",
    "nvdlfw_inspect": "nvdlfw-inspect",
    "comet_ml": "comet-ml",
    "typing_extensions": "typing-extensions",
}
"""Distributions whose importable name differs from theirs."""

SOURCES = [
    *(package.source for package in PACKAGES),
    Path(str(importlib.util.find_spec("mb_trainer").submodule_search_locations[0])),
]
"""Folders of all importable packages, the trainer included."""
