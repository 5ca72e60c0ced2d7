"""Callback that injects a fault into its process, requested by an environment variable. No torch.

`MB_VERIFY_FAULT` holds the fields of `FaultRequest` as JSON; `callbacks_from_environment` reads it.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mb_verify.drill.plan import IN_PROCESS, SLOW_STEPS, FaultKind
from mb_verify.errors import InjectedFaultError, RecordingRequestError

FAULT = "MB_VERIFY_FAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRequest:
    """Fault that a callback injects, as it is passed to the processes of a start."""

    kind: FaultKind
    """One of `IN_PROCESS`."""
    rank: int
    step: int
    seconds: float
    """Seconds that a slow rank sleeps in each of its steps."""
    mark: str
    """File that receives the time of the fault."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "FaultRequest | None":
        """Return the request of an environment; None if there is none.

        Raises:
            RecordingRequestError: the variable does not hold such a request.
        """
        text = environment.get(FAULT)
        if not text:
            return None
        try:
            request = cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            names = ", ".join(item.name for item in fields(cls))
            raise RecordingRequestError(
                f"{FAULT}: {text!r} is not a request of a fault ({error}). Set a JSON object with {names}, or unset it."
            ) from None
        if request.kind not in IN_PROCESS:
            raise RecordingRequestError(
                f"{FAULT}: kind {request.kind!r} is not injected by a callback. Choose from "
                f"{', '.join(sorted(IN_PROCESS))}."
            )
        return request

    def variables(self) -> dict[str, str]:
        """Return the environment variable that passes this request to a process."""
        return {FAULT: json.dumps(asdict(self))}


class InjectedFault:
    """Callback that makes its rank raise, sleep, or compute NaN in the requested step, or the next one that is trained.

    An exception and NaN come from a forward hook on the model's first chunk, in the middle of a step. Reads
    `state.train_state.step` and `model` (a module or a list of chunks) of the events' argument.

    Args:
        request: what is injected.
        rank: rank of this process.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self, request: FaultRequest, *, rank: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._request = request
        self._is_target = rank == request.rank
        self._sleep = sleep
        self._hooks: list[Any] = []
        self._is_injected = False

    def on_train_step_start(self, context: Any) -> None:
        """Inject the fault if it is due in this step."""
        step, due = context.state.train_state.step + 1, self._request.step
        if not self._is_target:
            return
        if self._request.kind == "slow" and due <= step < due + SLOW_STEPS:
            self._mark()
            self._sleep(self._request.seconds)
        elif self._request.kind != "slow" and step >= due and not self._is_injected:
            self._is_injected = True
            model = context.model
            chunk = model[0] if isinstance(model, list | tuple) else model
            self._hooks.append(chunk.register_forward_hook(self._change_output))

    def on_train_step_end(self, context: Any) -> None:
        """Remove the hook of a step that has ended."""
        while self._hooks:
            self._hooks.pop().remove()

    def _change_output(self, module: Any, inputs: Any, output: Any) -> Any:
        self._mark()
        if self._request.kind == "raise":
            raise InjectedFaultError(
                f"fault of a drill: raised in step {self._request.step} on rank {self._request.rank}"
            )
        return with_nan(output)

    def _mark(self) -> None:
        Path(self._request.mark).write_text(repr(time.time()), encoding="utf-8")


def with_nan(output: Any) -> Any:
    """Return the output of a module with NaN in each floating-point tensor."""
    if isinstance(output, list | tuple):
        return type(output)(map(with_nan, output))
    if isinstance(output, dict):
        return {name: with_nan(value) for name, value in output.items()}
    return (
        output * float("nan")
        if hasattr(output, "is_floating_point") and output.is_floating_point()
        else output
    )
