"""Programs of users: which functions are theirs, and what a training program may return besides its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ProgramError


@dataclass(frozen=True)
class Aux:
    """The second result of `(ops, params, state, *batch) -> (loss, Aux(state=, metrics=))`.

    state     the new state (running statistics): a pytree shaped like the one passed in; it commits with the step
    metrics   scalars to report, by name
    """

    state: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


def loss_and_aux(result: Any) -> tuple[Any, Aux]:
    """Return the loss of a training program's result, and its Aux (empty if there is none). Raises ProgramError."""
    loss, aux = result if isinstance(result, tuple) and len(result) == 2 else (result, Aux())
    if not isinstance(aux, Aux):
        raise ProgramError(
            f"a training program returns its loss, or (loss, Aux(state=, metrics=)); got {type(aux).__name__}"
        )
    return loss, aux


def is_ours(f: Callable[..., Any]) -> bool:
    """Return whether a function, method or callable is Opstage's, whose programs call named ops alone."""
    return (getattr(f, "__module__", None) or "").startswith("opstage.")
