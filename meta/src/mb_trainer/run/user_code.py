"""Code of the user that a run uses in addition to its configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mb_trainer.errors import UserCodeError

ModelHook = Callable[[list[Any]], Any]
"""Function that modifies a rank's model chunks in place, or returns others as a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """Forward step, hooks on the model, callbacks and sinks of a run.

    An argument of `pretrain` and `finetune`, or the `code` of a `Recipe`, so that `mb pretrain RECIPE` uses it.
    """

    forward_step: Callable[..., Any] | None = None
    """`(iterator, model)` or `(state, iterator, model)`, called by Megatron's schedules; returns the output of the
    model and the loss function for it. None: that of the model's family.
    """
    pre_wrap_hooks: Sequence[ModelHook] = ()
    """Called in order with the chunks before adapters are installed and before data parallelism wraps them."""
    post_wrap_hooks: Sequence[ModelHook] = ()
    """Called in order with the wrapped chunks, before the optimizer is built."""
    callbacks: Sequence[object] = ()
    """Objects with `on_*` methods, called after the trainer's own."""
    sinks: Sequence[Any] = ()
    """Destinations of the metrics in addition to those of the section `logger`; open on the logging rank only."""
    process_non_loss_data: Callable[[Any, int, Any], object] | None = None
    """Called as (data, step, writer) after each validation, on the rank with TensorBoard's SummaryWriter."""
    non_loss_data: Callable[[Sequence[Any]], Any] | None = None
    """Called with the chunks after each validation, on all ranks; returns the data. None: the data come from
    `loss_function(output, non_loss_data=True)` of the last batch.
    """

    compute_metrics: Callable[[Any], Mapping[str, Any]] | None = None
    """Called with each microbatch of an evaluation (`mb_models.EvaluationOutput`: losses, labels, logits), on the ranks
    of the last pipeline stage; returns metrics by name, which are logged as "NAME validation" and can be
    `checkpoint.best_metric`. With a custom `forward_step`, return them from its loss function instead.
    """

    def __post_init__(self) -> None:
        """Raise UserCodeError if a hook, a callback or a sink is not in a list, or metrics would not be computed."""
        for part in ("pre_wrap_hooks", "post_wrap_hooks", "callbacks", "sinks"):
            if not isinstance(value := getattr(self, part), Sequence):
                raise UserCodeError(f"code.{part}: is not a list ({value!r}). Write it in square brackets.")
        if self.compute_metrics is not None and self.forward_step is not None:
            raise UserCodeError(
                "code.compute_metrics: is set with a custom forward_step, whose labels are not known. Return the "
                "metrics from the loss function of the forward step, where model.training is false."
            )

    def with_callbacks(self, callbacks: Sequence[object]) -> "UserCode":
        """Return the same code with further callbacks, which are called after those of this record."""
        return replace(self, callbacks=(*self.callbacks, *callbacks))

    @property
    def names(self) -> Mapping[str, list[str]]:
        """Names of the code that determines the computation; a run resumes with the same."""
        parts = {
            "forward_step": [] if self.forward_step is None else [self.forward_step],
            "pre_wrap_hooks": self.pre_wrap_hooks,
            "post_wrap_hooks": self.post_wrap_hooks,
        }
        return {part: [name_of(each) for each in code] for part, code in parts.items() if code}


NO_CODE = UserCode()


def name_of(code: object) -> str:
    """Return the qualified name of a function, or of the class of a callable object."""
    named: Any = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}.{named.__qualname__}"
