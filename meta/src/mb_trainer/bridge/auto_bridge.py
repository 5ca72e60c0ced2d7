"""Model sections and weights from Hugging Face models, as Megatron-Bridge's AutoBridge does it. No torch at import."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from mb_models import MambaModelConfig, trainer_api
from mb_models.trainer_api import (
    ARCHITECTURES,
    HuggingFaceError,
    HuggingFaceFolderError,
    KernelFields,
    OverlapFields,
    architecture_of,
    is_model_folder,
    read_config,
    section_of,
)
from mb_trainer.bridge.providers import GPTModelProvider, HybridModelProvider, MLAModelProvider
from mb_trainer.run.pretrained import EXPORT, IMPORT

FUSIONS: Mapping[str, object] = dict.fromkeys(
    ("bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion", "persist_layer_norm"), True
)
EXPERTS: Mapping[str, object] = {
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_permute_fusion": True,
}
LATENT: Mapping[str, object] = {
    **FUSIONS,
    **EXPERTS,
    "moe_router_load_balancing_type": "seq_aux_loss",
    "moe_shared_expert_overlap": True,
    "moe_router_dtype": "fp32",
    "cross_entropy_fusion_impl": "te",
}
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "llama": {**FUSIONS, "apply_rope_fusion": True},
    "qwen2_moe": {**EXPERTS, "moe_aux_loss_coeff": 1e-3},
    "qwen3_moe": {**EXPERTS, "moe_aux_loss_coeff": 1e-3},
    "qwen3_next": {
        **EXPERTS,
        "moe_router_load_balancing_type": "global_aux_loss",
        "moe_aux_loss_coeff": 1e-3,
        "moe_router_dtype": "fp32",
    },
    "gpt_oss": {**EXPERTS, "moe_router_load_balancing_type": "none", "bias_activation_fusion": True},
    "deepseek_v2": {**LATENT, "seq_length": 4096},
    "deepseek_v3": {**LATENT, "moe_aux_loss_coeff": 1e-4},
    "olmoe": {
        **EXPERTS,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_router_dtype": "fp32",
        "persist_layer_norm": True,
    },
    "nemotron_h": {"masked_softmax_fusion": True, "persist_layer_norm": True, "first_last_layers_bf16": True},
}
"""model_type -> settings of training and of kernels that Megatron-Bridge's providers of the family have."""

FROM_CONFIG = {"aux_loss_alpha": "moe_aux_loss_coeff", "router_aux_loss_coef": "moe_aux_loss_coeff"}
"""Field of config.json that does not change the logits -> field of the section, of families with experts."""


OF_THE_PROVIDER = {item.name for kind in (KernelFields, OverlapFields) for item in fields(kind)} | {
    "attention_softmax_in_fp32",
    "parallel_output",
    "transformer",
}
"""Fields in which a provider's default holds, not what a conversion of weights sets."""


class AutoBridge:
    """Model of Hugging Face, as the source of a model section and of weights.

    Attributes:
        hf_model_id: Name or folder of the model.
        config: Content of its config.json.
    """

    def __init__(
        self, config: Mapping[str, Any], *, hf_model_id: str = "", folder: Path | None = None
    ) -> None:
        self.config, self.hf_model_id, self.folder = dict(config), hf_model_id, folder

    @classmethod
    def from_hf_pretrained(
        cls,
        path: str | Path,
        *,
        trust_remote_code: bool = False,
        revision: str | None = None,
        torch_dtype: Any = None,
        **options: Any,
    ) -> "AutoBridge":
        """Return the bridge of a folder, or of a model on the hub, of which config.json is read.

        Args:
            path: Folder with a config.json, or name of a model on the hub, which is looked up in the cache first.
            trust_remote_code: Without effect: no code of a model is run.
            revision: Revision on the hub.
            torch_dtype: Floating-point type of the section, such as torch.bfloat16; None: that of the model.
            options: Further options of `huggingface_hub.hf_hub_download`, such as `cache_dir` and `token`.

        Raises:
            TypeError: There is no such option.
            HuggingFaceFolderError: There is no such folder, and the hub cannot be reached or has no such model.
            HuggingFaceError: Models of this kind cannot be converted.
        """
        del trust_remote_code
        folder = _folder(str(path), revision=revision, **options)
        content = read_config(folder)
        if torch_dtype is not None:
            content = {**content, "dtype": str(torch_dtype)}
        return cls(content, hf_model_id=str(path), folder=folder)

    @classmethod
    def from_hf_config(cls, config: Any) -> "AutoBridge":
        """Return the bridge of a configuration of transformers, or of the content of a config.json."""
        content = config if isinstance(config, Mapping) else config.to_dict()
        return cls(
            architecture_of(dict(content), source="config"), hf_model_id=str(content.get("_name_or_path", ""))
        )

    @staticmethod
    def list_supported_models() -> list[str]:
        """Return the architectures that can be converted."""
        return sorted(ARCHITECTURES.values())

    @classmethod
    def supports(cls, config: Any) -> bool:
        """Return whether models of a configuration of transformers can be converted."""
        return any(name in ARCHITECTURES.values() for name in getattr(config, "architectures", None) or ())

    @classmethod
    def can_handle(cls, path: str | Path, trust_remote_code: bool = False) -> bool:
        """Return whether the model of a folder, or on the hub, can be converted."""
        try:
            cls.from_hf_pretrained(path, trust_remote_code=trust_remote_code)
        except HuggingFaceError:
            return False
        return True

    def to_megatron_provider(
        self, load_weights: bool = True, hf_path: str | Path | None = None
    ) -> GPTModelProvider | HybridModelProvider:
        """Return the model section, with the settings of Megatron-Bridge's provider of the family.

        Args:
            load_weights: `pretrain` and `finetune` start from the weights of the model, unless
                checkpoint.pretrained_checkpoint names others; False: from random ones.
            hf_path: Folder of the weights; None: that of the model.

        Raises:
            HuggingFaceError: Megatron Core would compute a different result, or there are no weights to load.
        """
        content = {name: value for name, value in self.config.items() if name != "quantization_config"}
        section = section_of(content, dtype=_dtype(content))
        latent = MLAModelProvider if section.multi_latent_attention else GPTModelProvider
        kind = HybridModelProvider if isinstance(section, MambaModelConfig) else latent
        known = {item.name: item for item in fields(kind)}
        values = {
            item.name: getattr(section, item.name)
            for item in fields(section)
            if item.name not in OF_THE_PROVIDER
            and (
                known[item.name].default is MISSING or getattr(section, item.name) != known[item.name].default
            )
        }
        values["transformer"] = dict(section.transformer)
        # the longest sequence, as a default; the model itself has no limit but that of learned positions
        values["seq_length"] = section.max_position_embeddings or section.seq_length
        values.pop("max_position_embeddings", None)
        values |= SETTINGS.get(content["model_type"], {})
        if getattr(section, "num_moe_experts", None):
            values |= {here: content[name] for name, here in FROM_CONFIG.items() if name in content}
        if content["model_type"] == "deepseek_v3":
            values["mtp_num_layers"] = content.get("num_nextn_predict_layers") or None
        provider = kind(**values, hf_model_id=self.hf_model_id or None)
        if load_weights:
            provider.hf_weights = str(self._weights(hf_path))
        return provider

    def load_hf_weights(self, model: Sequence[Any], hf_path: str | Path | None = None) -> None:
        """Copy the weights into this rank's chunks, under any layout. Not collective.

        Args:
            model: Chunks that were built from the section.
            hf_path: Folder of the weights; None: that of the model.

        Raises:
            HuggingFaceError: There are no weights, or the model expects others.
        """
        trainer_api.load_hf_weights(model, self._weights(hf_path))  # imports torch, as late as this

    @classmethod
    def import_ckpt(
        cls,
        hf_model_id: str | Path,
        megatron_path: str | Path,
        *,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        """Write a checkpoint from the weights of a folder, in a process on the CPU, as `mb import-hf`.

        A run starts from it with `checkpoint.pretrained_checkpoint=megatron_path`.

        Args:
            hf_model_id: Folder with config.json and *.safetensors, such as one in the cache of the hub.
            megatron_path: New folder.
            trust_remote_code: Without effect: no code of a model is run.
            options: Options of `huggingface_hub.hf_hub_download`. The weights keep their floating-point type.

        Raises:
            TypeError: There is no such option.
            HuggingFaceError: The weights are missing or cannot be converted, or several processes call this.
        """
        del trust_remote_code
        folder = _folder(str(hf_model_id), **options)
        if not is_model_folder(folder):
            raise HuggingFaceFolderError(
                f"{folder}: has no *.safetensors. Pass the folder of the downloaded model."
            )
        _convert([*IMPORT, str(folder), "--out", str(megatron_path)])

    def export_ckpt(self, megatron_path: str | Path, hf_path: str | Path) -> None:
        """Write the newest checkpoint of a run as a folder of transformers, on the CPU, as `mb export-hf`.

        Args:
            megatron_path: Run folder, or its checkpoints.
            hf_path: New folder.

        Raises:
            HuggingFaceError: The model cannot be converted, or several processes call this.
        """
        _convert(
            [*EXPORT, str(megatron_path), "--out", str(hf_path), "--model-type", self.config["model_type"]]
        )

    def _weights(self, hf_path: str | Path | None = None) -> Path:
        folder = Path(hf_path) if hf_path is not None else self.folder
        if folder is None or not is_model_folder(folder):
            raise HuggingFaceFolderError(
                f"{folder or self.hf_model_id}: has no *.safetensors, from which a run would start. Pass "
                "load_weights=False for random weights, or the folder of the downloaded model as hf_path."
            )
        return folder


def _convert(command: Sequence[str]) -> None:
    """Run a command that converts weights: it would make this process one without a GPU."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise HuggingFaceError(
            f"AutoBridge: {command[-1]} is written by one process (WORLD_SIZE={os.environ['WORLD_SIZE']}), because the "
            "others would write the same files. Convert in a script of its own, before the run."
        )
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        raise HuggingFaceError(
            (ended.stderr.strip() or f"exit code {ended.returncode}").removeprefix("error: ")
        )


def _dtype(content: Mapping[str, Any]) -> Any:
    named = str(content.get("dtype") or content.get("torch_dtype") or "float32").removeprefix("torch.")
    return named if named in ("float32", "bfloat16", "float16") else "bfloat16"


def _folder(name: str, **options: Any) -> Path:
    """Return the folder of a model's config.json: `name`, or that in the cache of the hub, downloaded if necessary.

    Raises:
        TypeError: There is no such option.
        HuggingFaceFolderError: There is no such folder, and the hub cannot be reached or has no such model.
    """
    folder = Path(name)
    is_local = (folder / "config.json").is_file()
    if is_local and options.keys() <= {"revision"}:
        return folder
    hub = import_module("huggingface_hub")
    if unknown := sorted(options.keys() - signature(hub.hf_hub_download).parameters):
        raise TypeError(
            f"AutoBridge: has no option {', '.join(unknown)}, because it only reads files. Remove it."
        )
    if is_local:
        return folder
    errors = import_module("huggingface_hub.errors")
    try:
        return Path(hub.hf_hub_download(name, "config.json", **options)).parent
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise HuggingFaceFolderError(
            f"{name}: is no folder with a config.json, and the hub did not give one, because {first} Pass a folder, or "
            "download the file on a machine with a network and set HF_HOME to its cache."
        ) from error
