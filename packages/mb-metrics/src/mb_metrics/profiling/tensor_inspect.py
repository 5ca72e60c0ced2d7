"""Statistics of tensors inside layers, by NVIDIA DL Framework Inspect. Imports neither torch nor the tool."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mb_metrics.errors import MetricsError
from mb_metrics.profiling.config import TensorInspectConfig

_logger = logging.getLogger(__name__)

_TENSOR = "activation"


class TensorInspectError(MetricsError, RuntimeError):
    """Error raised when tensor inspection is enabled and cannot be started."""


class TensorInspection:
    """Callback that inspects tensors during training; custom loops call `step` and `close`.

    `start_tensor_inspection` returns an instance. If Transformer Engine is installed, its layers report the configured
    statistics to the tool. Otherwise the output of every module is passed to the tool's `LogTensorStats` as tensor
    "activation": each rank logs its tensors separately, and logging synchronizes with the device.

    Args:
        tool: The initialized tool, as the module `nvdlfw_inspect.api`.
        hooks: If True, inspect the output of every module.
    """

    def __init__(self, tool: Any, *, hooks: bool) -> None:
        self._tool = tool
        self._hooks = hooks
        self._handles: list[Any] = []
        self._ended = False

    def attach(self, model: Any, *, group: Any = None) -> None:
        """Name the layers of a model and start to inspect them. Call it after the model is built.

        Args:
            model: A module, or the list of this rank's model chunks.
            group: Ranks over which Transformer Engine's statistics are reduced; None: no reduction.
        """
        chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        self._tool.infer_and_assign_layer_names(chunks)
        if group is not None:
            self._tool.set_tensor_reduction_group(group)
        if self._hooks:
            modules = (module for chunk in chunks for module in chunk.modules())
            self._handles += [module.register_forward_hook(self._log_output) for module in modules]

    def step(self) -> None:
        """Count a training step."""
        self._tool.step()

    def close(self) -> None:
        """Shut down the tool and remove the hooks from the model. A second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if not self._ended:
            self._ended = True
            self._tool.end_debug()

    def on_train_step_end(self, context: Any) -> None:
        """Call `step`."""
        self.step()

    def on_train_end(self, context: Any) -> None:
        """Call `close`."""
        self.close()

    def _log_output(self, module: Any, _inputs: Any, output: Any) -> None:
        tensor = next(_tensors(output), None)
        if tensor is not None:
            self._tool.log_tensor_stats(
                module.name, tensor_name=_TENSOR, tensor=tensor.detach(), skip_reduction=True
            )


def start_tensor_inspection(
    config: TensorInspectConfig | None,
    *,
    save: str | Path | None = None,
    loaded_step: int = 0,
    rank: int = 0,
    tool: Callable[[], Any] | None = None,
) -> TensorInspection | None:
    """Start tensor inspection. Call it before the model is built, and `attach` after that.

    Returns None without a configuration, or if inspection is not enabled.

    Args:
        config: The section.
        save: Checkpoint folder, the default folder of the logs if `config.log_dir` is None.
        loaded_step: Step of the checkpoint that the run resumes from.
        rank: Rank of this process.
        tool: Function that returns the tool; None: nvdlfw_inspect.

    Raises:
        TensorInspectError: nvdlfw-inspect is not installed or rejects the features, none are set, or custom feature
            folders are set without permission to execute them.
    """
    if config is None or not config.enabled:
        return None
    if config.feature_dirs and not config.allow_custom_feature_dirs:
        raise TensorInspectError(
            f"tensor_inspect.feature_dirs: custom feature folders are not allowed ({config.feature_dirs}). They are "
            "folders of code, which would be executed. Review them and set "
            "tensor_inspect.allow_custom_feature_dirs=true."
        )
    if not config.features:
        raise TensorInspectError(
            f"tensor_inspect.features: no features are set (features={config.features!r}). Nothing would be logged. "
            "Set it to the tool's settings, or to the path of a YAML file that contains them."
        )
    inspect_tool = (tool or _installed_tool)()
    folder = Path(config.log_dir or save or ".")
    folder.mkdir(parents=True, exist_ok=True)
    te_features = _transformer_engine_features()
    try:
        inspect_tool.initialize(
            config_file=_settings_file(config.features, folder, rank),
            feature_dirs=config.feature_dirs or te_features,
            log_dir=str(folder),
            init_training_step=config.init_training_step or loaded_step,
            default_logging_enabled=True,
        )
    except AssertionError as error:  # the tool's way to reject its settings
        no_te = " Transformer Engine is not installed; without it there is LogTensorStats only."
        hint = "" if te_features else no_te
        raise TensorInspectError(
            f"tensor_inspect.features: the tool rejects them ({error}).{hint} Correct the settings, or set "
            "tensor_inspect.enabled=false."
        ) from error
    return TensorInspection(inspect_tool, hooks=te_features is None)


def _installed_tool() -> Any:
    try:
        return import_module("nvdlfw_inspect.api")
    except ModuleNotFoundError as missing:
        raise TensorInspectError(
            f"tensor_inspect.enabled: {missing.name} is not installed. Tensor inspection requires it. Install it (pip "
            "install mb-metrics[inspect]), or set tensor_inspect.enabled=false."
        ) from missing


def _transformer_engine_features() -> list[str] | None:
    """Return the folder of the features of Transformer Engine; None if it is not installed."""
    try:
        features = find_spec("transformer_engine.debug.features")
    except ModuleNotFoundError:
        return None
    return None if features is None else [str(path) for path in features.submodule_search_locations or []]


def _settings_file(features: Mapping[str, Any] | str, folder: Path, rank: int) -> str:
    """Return the path of the tool's settings. A mapping is written as JSON, a subset of YAML, to one file per rank."""
    if isinstance(features, (str, Path)):
        return str(features)
    path = folder / f"tensor_inspect_rank{rank}.yaml"
    path.write_text(json.dumps(features, indent=1), encoding="utf-8")
    return str(path)


def _tensors(output: Any) -> Iterator[Any]:
    """Yield the floating-point tensors of a module's output."""
    if isinstance(output, Sequence) and not isinstance(output, str):
        for item in output:
            yield from _tensors(item)
    elif hasattr(output, "is_floating_point") and output.is_floating_point() and output.numel():
        yield output
