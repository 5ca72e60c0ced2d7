"""Statistics of the tensors inside layers, by NVIDIA DL Framework Inspect. Imports neither torch nor that tool."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from mb_metrics.profiling_config import TensorInspectConfig

_logger = logging.getLogger(__name__)

_TENSOR = "activation"


class TensorInspectError(RuntimeError):
    """Tensors are to be looked at, and cannot be."""


class InspectTool(Protocol):
    """What is used of nvdlfw_inspect.api."""

    def initialize(
        self,
        config_file: str = ...,
        feature_dirs: list[str] | None = ...,
        *,
        log_dir: str = ...,
        init_training_step: int = ...,
        default_logging_enabled: bool = ...,
    ) -> None:
        """Begin; once in a process, before the model is built."""

    def infer_and_assign_layer_names(self, model: Any) -> None:
        """Give each module of a model, or of a list of chunks, its `name`."""

    def set_tensor_reduction_group(self, group: Any) -> None:
        """Say over which ranks statistics are reduced."""

    def log_tensor_stats(
        self, layer_name: str, *, tensor_name: str, tensor: Any, skip_reduction: bool = ...
    ) -> object:
        """Log what the settings ask for of a tensor."""

    def step(self) -> None:
        """Count a training step."""

    def end_debug(self) -> None:
        """Write out and end."""


class TensorInspection:
    """Looks at tensors while a model trains; a callback for a training loop, or `step` and `close` by hand.

    `start_tensor_inspection` makes one. Where Transformer Engine is there, its layers report to the tool what its
    features ask for. Where it is not, the output of every module goes through the tool's own `LogTensorStats`, as
    tensor "activation": each rank logs its own, and logging waits for the device.

    Args:
        tool: The tool, begun.
        hooks: Whether to look at the output of every module.
    """

    def __init__(self, tool: InspectTool, *, hooks: bool) -> None:
        self._tool = tool
        self._hooks = hooks
        self._handles: list[Any] = []
        self._ended = False

    def attach(self, model: Any, *, group: Any = None) -> None:
        """Name the layers of a model, and look at them; call it when the model is built.

        Args:
            model: A module, or the list of this rank's model chunks.
            group: Ranks over which Transformer Engine's statistics are reduced; None: each rank's own.
        """
        chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        self._tool.infer_and_assign_layer_names(chunks)
        if group is not None:
            self._tool.set_tensor_reduction_group(group)
        if self._hooks:
            modules = (module for chunk in chunks for module in chunk.modules())
            self._handles += [module.register_forward_hook(self._look) for module in modules]

    def step(self) -> None:
        """Count a training step."""
        self._tool.step()

    def close(self) -> None:
        """End, and let go of the model. A second call does nothing."""
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

    def _look(self, module: Any, _inputs: Any, output: Any) -> None:
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
    tool: Callable[[], InspectTool] | None = None,
) -> TensorInspection | None:
    """Begin to look at tensors; call it before the model is built, and `attach` when it is.

    Returns None without a configuration, or where it is not enabled.

    Args:
        config: What to look at.
        save: Folder of the checkpoints, where logs go unless `config.log_dir` says otherwise.
        loaded_step: Steps of the checkpoint that the run resumes from.
        rank: Of this process.
        tool: Returns the tool; None: nvdlfw_inspect.

    Raises:
        TensorInspectError: nvdlfw-inspect is not installed, there is nothing to look at, or folders of code are given
            without leave.
    """
    if config is None or not config.enabled:
        return None
    if config.feature_dirs and not config.allow_custom_feature_dirs:
        raise TensorInspectError(
            f"tensor_inspect.feature_dirs: {config.feature_dirs} are folders of code, which would be run; nobody gave "
            "leave. Read them and set tensor_inspect.allow_custom_feature_dirs=true."
        )
    if not config.features:
        raise TensorInspectError(
            f"tensor_inspect.features: nothing is said of what to look at (features={config.features!r}), so nothing "
            "would be logged. Set it to the tool's settings, or to the path of a YAML file of them."
        )
    begun = (tool or _installed_tool)()
    folder = Path(config.log_dir or save or ".")
    folder.mkdir(parents=True, exist_ok=True)
    shipped = _transformer_engine_features()
    begun.initialize(
        config_file=_settings_file(config.features, folder, rank),
        feature_dirs=config.feature_dirs or shipped,
        log_dir=str(folder),
        init_training_step=config.init_training_step or loaded_step,
        default_logging_enabled=True,
    )
    return TensorInspection(begun, hooks=shipped is None)


def _installed_tool() -> InspectTool:
    try:
        tool: InspectTool = import_module("mb_metrics.nvdlfw").tool()
    except ModuleNotFoundError as missing:
        raise TensorInspectError(
            f"tensor_inspect.enabled: {missing.name} is not installed, and it is what looks at tensors. Install it "
            "(pip install mb-metrics[inspect]), or set tensor_inspect.enabled=false."
        ) from missing
    return tool


def _transformer_engine_features() -> list[str] | None:
    """Return the folder of features that Transformer Engine ships; None where it is not there."""
    try:
        found = find_spec("transformer_engine.debug.features")
    except ModuleNotFoundError:
        return None
    return None if found is None else [str(path) for path in found.submodule_search_locations or []]


def _settings_file(features: Mapping[str, Any] | str, folder: Path, rank: int) -> str:
    """Return the path of the tool's settings; a mapping is written as JSON, which is YAML, a file per rank."""
    if isinstance(features, (str, Path)):
        return str(features)
    path = folder / f"tensor_inspect_rank{rank}.yaml"
    path.write_text(json.dumps(features, indent=1))
    return str(path)


def _tensors(output: Any) -> Iterator[Any]:
    """Yield the floating-point tensors of a module's output."""
    if isinstance(output, Sequence) and not isinstance(output, str):
        for each in output:
            yield from _tensors(each)
    elif hasattr(output, "is_floating_point") and output.is_floating_point() and output.numel():
        yield output
