"""Model sections and weights from Hugging Face models, as Megatron-Bridge's AutoBridge does it. No torch at import."""

import json
import os
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mb_checkpoint.trainer_api import environment_of_child
from mb_models import MambaModelConfig
from mb_models.trainer_api import (
    ARCHITECTURES,
    LETTERS,
    HuggingFaceError,
    HuggingFaceFolderError,
    KernelFields,
    OverlapFields,
    architecture_of,
    is_model_folder,
    read_config,
    section_of,
    unequal_parts,
)
from mb_trainer.bridge import missing_member
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
    "kimi_k2": {
        **LATENT,
        "seq_length": 4096,
        "moe_aux_loss_coeff": 1e-3,
        "make_vocab_size_divisible_by": 1280,
    },
    "glm4_moe": {
        **EXPERTS,
        "bias_activation_fusion": True,
        "bias_dropout_fusion": True,
        "persist_layer_norm": True,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_shared_expert_overlap": True,
        "moe_router_bias_update_rate": 0.0,
        "moe_aux_loss_coeff": 1e-3,
    },
    "olmoe": {
        **EXPERTS,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_router_dtype": "fp32",
        "persist_layer_norm": True,
    },
    "nemotron_h": {"masked_softmax_fusion": True, "persist_layer_norm": True, "first_last_layers_bf16": True},
    "nemotron_h with experts": {
        **EXPERTS,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_aux_loss_coeff": 1e-4,
        "moe_shared_expert_overlap": True,
    },
}
"""model_type, or "... with experts" -> settings of training and of kernels of Megatron-Bridge's providers."""

FROM_CONFIG = {"aux_loss_alpha": "moe_aux_loss_coeff", "router_aux_loss_coef": "moe_aux_loss_coeff"}
"""Field of config.json that does not change the logits -> field of the section, of families with experts."""


OF_THE_PROVIDER = {item.name for kind in (KernelFields, OverlapFields) for item in fields(kind)} | {
    "attention_softmax_in_fp32",
    "parallel_output",
    "transformer",
}
"""Fields in which a provider's default holds, not what a conversion of weights sets."""

_ADAPTERS = "`mb export-hf RUN --adapters` writes adapters as the library peft loads them."
_OPTIMIZER = "Model Optimizer (quantization, pruning, distillation) is not supported."
_SECTION = "mb_models.transformer_config builds it of the section that to_megatron_provider returns."
ELSEWHERE: Mapping[str, str] = {
    "export_adapter_ckpt": _ADAPTERS,
    "export_adapter_weights": _ADAPTERS,
    "save_hf_adapter": _ADAPTERS,
    "export_hf_weights_modelopt": _OPTIMIZER,
    "export_hf_weights_quant": _OPTIMIZER,
    "save_hf_weights": "save_hf_pretrained writes the weights, with config.json and the tokenizer.",
    "push_to_hub": "huggingface_hub.upload_folder uploads the folder that save_hf_pretrained writes.",
    "get_conversion_tasks": "A family of models is data in mb_models.hf; `mb import-hf` and `mb export-hf` convert.",
    "transformer_config": _SECTION,
    "mla_transformer_config": _SECTION,
}
"""Member of Megatron-Bridge's AutoBridge that is not here -> what is in its place, or why there is nothing."""


class AutoBridge:
    """Model of Hugging Face, as the source of a model section and of weights.

    Made of the content of a config.json, or of a configuration of transformers.

    Attributes:
        hf_model_id: Name or folder of the model.
        config: Content of its config.json.
    """

    def __init__(self, config: Any, *, hf_model_id: str = "", folder: Path | None = None) -> None:
        content = config if isinstance(config, Mapping) else config.to_dict()
        self.config, self.hf_model_id, self.folder = dict(content), hf_model_id, folder

    def __getattr__(self, name: str) -> Any:
        """Raise for a member that is missing here, with what is in its place."""
        text = ELSEWHERE.get(name, "Megatron-Bridge 0.6.2 has no such member either.")
        raise missing_member(self, name, text)

    @property
    def hf_pretrained(self) -> Any:
        """Return the model of Hugging Face: `config` of transformers, and `state`, tensors by name."""
        return _models().StoredModel(folder=self._weights())

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

    @classmethod
    def from_auto_config(
        cls, megatron_path: str | Path, hf_model_id: str | Path, trust_remote_code: bool = False
    ) -> "AutoBridge":
        """Return the bridge with which `export_ckpt` writes a checkpoint in the format of a model.

        The exported sizes are those of the checkpoint; sections of this bridge have those of the model.

        Args:
            megatron_path: Run folder, or its checkpoints.
            hf_model_id: Folder with a config.json, or name of a model on the hub.
            trust_remote_code: Without effect: no code of a model is run.

        Raises:
            HuggingFaceFolderError: There is no such checkpoint or model.
        """
        if not Path(megatron_path).exists():
            raise HuggingFaceFolderError(
                f"{megatron_path}: does not exist. Name a run folder, or its checkpoints."
            )
        return cls.from_hf_pretrained(hf_model_id, trust_remote_code=trust_remote_code)

    @staticmethod
    def list_supported_models() -> list[str]:
        """Return the architectures that can be converted."""
        return sorted({*ARCHITECTURES.values()})

    @staticmethod
    def get_hf_model_id_from_checkpoint(path: str | Path) -> str | None:
        """Return `model.hf_model_id` of a checkpoint, or of the newest one in a folder; None if there is none.

        Raises:
            mb_checkpoint.CheckpointNotFoundError: The folder does not exist.
        """
        name: str | None = import_module("mb_trainer.bridge.checkpointing").get_hf_model_id_from_checkpoint(
            path
        )
        return name

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

        What Megatron Core computes differently with the same weights is a warning if none are loaded.

        Raises:
            HuggingFaceError: Megatron Core would compute a different result, or there are no weights to load.
        """
        content = {name: value for name, value in self.config.items() if name != "quantization_config"}
        section = section_of(content, dtype=_dtype(content), exact=load_weights)
        for part in () if load_weights else unequal_parts(content):
            warnings.warn(
                f"AutoBridge: {self.hf_model_id or content['model_type']}: {part}. The weights of the model cannot be "
                "used; a run starts from random ones.",
                stacklevel=2,
            )
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
            values |= SETTINGS.get(f"{content['model_type']} with experts", {})
            values |= {here: content[name] for name, here in FROM_CONFIG.items() if name in content}
        values |= _further_tokens(content)
        provider = kind(**values, hf_model_id=self.hf_model_id or None)
        if load_weights:
            provider.hf_weights = str(self._weights(hf_path))
        return provider

    def to_megatron_model(
        self, load_weights: bool = True, hf_path: str | Path | None = None, **options: Any
    ) -> list[Any]:
        """Return this rank's chunks of the model. Collective.

        Args:
            load_weights: With the weights of the model; False: random ones.
            hf_path: Folder of the weights; None: that of the model.
            options: Arguments of `provide_distributed_model`, such as `ddp_config` and `wrap_with_ddp`.
        """
        return self.to_megatron_provider(load_weights, hf_path).provide_distributed_model(**options)

    def load_hf_weights(
        self,
        model: Sequence[Any],
        hf_path: str | Path | None = None,
        allowed_mismatched_params: Sequence[str] | None = None,
    ) -> None:
        """Copy the weights into this rank's chunks, under any layout. Not collective.

        Args:
            model: Chunks that were built from the section, wrapped or not.
            hf_path: Folder of the weights; None: that of the model.
            allowed_mismatched_params: Not supported.

        Raises:
            ValueError: Weights of other shapes are allowed.
            HuggingFaceError: There are no weights, or the model expects others.
        """
        if allowed_mismatched_params:
            raise ValueError(
                f"allowed_mismatched_params: {allowed_mismatched_params} is not supported, because a weight of another "
                "shape would stay random. Build the model with the sizes of config.json."
            )
        _models().load_weights(model, self._weights(hf_path))

    def export_hf_weights(
        self, model: Sequence[Any], cpu: bool = False, show_progress: bool = True
    ) -> Iterator[Any]:
        """Yield name and value of each tensor of the Hugging Face model. Not collective.

        Args:
            model: Chunks of a complete model, wrapped or not.
            cpu: Move the tensors to the host.
            show_progress: Without effect: nothing is printed.

        Raises:
            ValueError: The model is distributed over ranks, and `save_hf_pretrained` merges them.
        """
        del show_progress
        for name, weight in _models().exported(model, section=self._section(model), content=self.config):
            yield _models().HFWeightTuple(name, weight.cpu() if cpu else weight)

    def save_hf_pretrained(  # noqa: PLR0913 - the parameters of Megatron-Bridge
        self,
        model: Sequence[Any],
        path: str | Path,
        show_progress: bool = True,
        source_path: str | Path | None = None,
        strict: bool = True,
        merge_adapter_weights: bool = True,
        distributed_save: bool = False,
        save_every_n_ranks: int = 1,
        weight_dtype: Any = None,
    ) -> None:
        """Write weights, config.json and tokenizer as a folder of transformers. Collective.

        Rank 0 writes, whatever the layout; all ranks return when the folder is complete.

        Args:
            model: Chunks of this rank, wrapped or not.
            path: New folder, which the ranks share.
            show_progress: Without effect: nothing is printed.
            source_path: Folder with the tokenizer; None: that of the model.
            strict: Without effect: a tensor that cannot be written is always an error.
            merge_adapter_weights: Adapters cannot be kept apart.
            distributed_save: Without effect: rank 0 alone writes.
            save_every_n_ranks: 1, as rank 0 alone writes.
            weight_dtype: The floating-point type of the weights.

        Raises:
            ValueError: An option has another value than those that are supported.
            HuggingFaceError: No model of transformers computes the same.
        """
        del show_progress, strict, distributed_save
        if not merge_adapter_weights:
            raise ValueError(
                "merge_adapter_weights: False is not supported, because a folder of transformers has no place for "
                "adapters. Save a checkpoint, and write them with `mb export-hf RUN --adapters`."
            )
        if save_every_n_ranks != 1:
            raise ValueError(
                f"save_every_n_ranks: {save_every_n_ranks} is not supported, because rank 0 writes. Leave it at 1."
            )
        trained = next(model[0].parameters()).dtype
        if weight_dtype not in (None, trained):
            raise ValueError(
                f"weight_dtype: {weight_dtype} is not supported, because weights are written as they are ({trained}). "
                f"Pass torch_dtype={weight_dtype} to from_hf_pretrained, or convert them with transformers."
            )
        _models().export(
            model,
            Path(path),
            section=self._section(model),
            content=self.config,
            assets=self.folder if source_path is None else Path(source_path),
            convert=self._export,
        )

    def save_megatron_model(
        self, model: Sequence[Any], path: str | Path, hf_tokenizer_path: str | Path | None = None
    ) -> None:
        """Write a checkpoint that a run starts from, in the layout-independent format. Collective.

        Args:
            model: Chunks of this rank, wrapped or not.
            path: Folder of the checkpoint, for `checkpoint.pretrained_checkpoint`.
            hf_tokenizer_path: Folder with the tokenizer; None: that of the model.
        """
        assets = self.folder if hf_tokenizer_path is None else Path(hf_tokenizer_path)
        _models().save_checkpoint_weights(model, Path(path), section=self._section(model), assets=assets)

    def load_megatron_model(
        self, path: str | Path, *, mp_overrides: Mapping[str, Any] | None = None, **options: Any
    ) -> list[Any]:
        """Return this rank's chunks with the weights of a checkpoint. Collective.

        Args:
            path: A checkpoint, or a folder of which the newest is read.
            mp_overrides: Fields of the section, such as `tensor_model_parallel_size`.
            options: Arguments of `provide_distributed_model`.
        """
        provider = self.to_megatron_provider(load_weights=False)
        for name, value in (mp_overrides or {}).items():
            setattr(provider, name, value)
        model = provider.provide_distributed_model(**options)
        _models().load_checkpoint_weights(model, Path(path))
        return model

    def _section(self, model: Sequence[Any]) -> Any:
        built = _models().section_of_chunks(model)
        return self.to_megatron_provider(load_weights=False) if built is None else built

    @classmethod
    def import_ckpt(
        cls,
        hf_model_id: str | Path,
        megatron_path: str | Path,
        *,
        trust_remote_code: bool = False,
        torch_dtype: Any = None,
        device_map: str = "cpu",
        **options: Any,
    ) -> None:
        """Write a checkpoint from the weights of a folder, in a process on the CPU, as `mb import-hf`.

        A run starts from it with `checkpoint.pretrained_checkpoint=megatron_path`.

        Args:
            hf_model_id: Folder with config.json and *.safetensors, such as one in the cache of the hub.
            megatron_path: New folder.
            trust_remote_code: Without effect: no code of a model is run.
            torch_dtype: The floating-point type of the weights, which they keep.
            device_map: "cpu".
            options: Options of `huggingface_hub.hf_hub_download`.

        Raises:
            TypeError: There is no such option.
            ValueError: Another floating-point type or device is wanted.
            HuggingFaceError: The weights are missing or cannot be converted, or several processes call this.
        """
        del trust_remote_code
        folder = _folder(str(hf_model_id), **options)
        stored = _dtype(read_config(folder))
        if torch_dtype is not None and str(torch_dtype).removeprefix("torch.") != stored:
            raise ValueError(
                f"torch_dtype: {torch_dtype} is not supported, because weights are written as they are ({stored}). "
                "Leave it out: a run computes in the type of its precision."
            )
        if device_map != "cpu":
            raise ValueError(
                f"device_map: {device_map} is not supported, because weights are converted on the CPU."
            )
        if not is_model_folder(folder):
            raise HuggingFaceFolderError(
                f"{folder}: has no *.safetensors. Pass the folder of the downloaded model."
            )
        _require_one_process(megatron_path)
        _convert([*IMPORT, str(folder), "--out", str(megatron_path)])

    def export_ckpt(
        self, megatron_path: str | Path, hf_path: str | Path, show_progress: bool = True, strict: bool = True
    ) -> None:
        """Write the newest checkpoint of a run as a folder of transformers, on the CPU, as `mb export-hf --source`.

        Args:
            megatron_path: Run folder, or its checkpoints.
            hf_path: New folder.
            show_progress: Without effect: nothing is printed.
            strict: Without effect: a tensor that cannot be written is always an error.

        Raises:
            HuggingFaceError: The model cannot be converted, or several processes call this.
        """
        del show_progress, strict
        _require_one_process(hf_path)
        self._export(Path(megatron_path), Path(hf_path))

    def _export(self, megatron_path: Path, hf_path: Path) -> None:
        kind = self.config["model_type"]
        with TemporaryDirectory() as empty:
            source = self.folder
            if source is None:
                source = Path(empty)
                (source / "config.json").write_text(json.dumps(self.config, default=str), encoding="utf-8")
            command = [*EXPORT, str(megatron_path), "--out", str(hf_path), "--model-type", kind]
            _convert([*command, "--source", str(source)])

    def _weights(self, hf_path: str | Path | None = None) -> Path:
        folder = Path(hf_path) if hf_path is not None else self.folder
        if folder is None or not is_model_folder(folder):
            raise HuggingFaceFolderError(
                f"{folder or self.hf_model_id}: has no *.safetensors, from which a run would start. Pass "
                "load_weights=False for random weights, or the folder of the downloaded model as hf_path."
            )
        return folder


def _models() -> Any:
    return import_module("mb_trainer.bridge.distributed_model")  # imports torch, as late as this


def _require_one_process(written: str | Path) -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise HuggingFaceError(
            f"AutoBridge: {written} is written by one process (WORLD_SIZE={os.environ['WORLD_SIZE']}), because the "
            "others would write the same files. Convert in a script of its own, before the run."
        )


def _convert(command: Sequence[str]) -> None:
    """Run a command that converts weights: it would make this process one without a GPU."""
    environment = environment_of_child(os.environ)
    ended = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        raise HuggingFaceError(
            (ended.stderr.strip() or f"exit code {ended.returncode}").removeprefix("error: ")
        )


def _further_tokens(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of multi-token prediction."""
    kind, number = content["model_type"], content.get("num_nextn_predict_layers") or None
    if kind == "qwen3_next":
        return {"mtp_hybrid_override_pattern": "*E"}  # of recipes that set mtp_num_layers
    if number is None or kind not in ("deepseek_v3", "kimi_k2", "glm4_moe", "nemotron_h"):
        return {}
    loss = {} if kind in ("deepseek_v3", "kimi_k2") else {"mtp_loss_scaling_factor": 0.3}
    return {"mtp_num_layers": number, **loss, **(_repeated_block(content) if kind == "nemotron_h" else {})}


def _repeated_block(content: Mapping[str, Any]) -> dict[str, Any]:
    kinds = content.get("mtp_layers_block_type") or ("attention", "moe")
    block = content.get("mtp_hybrid_override_pattern") or "".join(LETTERS[kind] for kind in kinds)
    return {
        "mtp_hybrid_override_pattern": block,
        "mtp_use_repeated_layer": content.get("mtp_use_repeated_layer", True),
    }


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
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise HuggingFaceFolderError(
            f"{name}: is no folder with a config.json, and the hub did not give one, because {first}. Pass a folder, "
            "or download the file on a machine with a network and set HF_HOME to its cache."
        ) from error
