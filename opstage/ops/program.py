"""Values that a training program may return besides its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Aux:
    """The second result of `(ops, params, state, *batch) -> (loss, Aux(state=, metrics=))`.

    state     the new state (running statistics): a pytree shaped like the one passed in; it commits with the step
    metrics   scalars to report, by name
    """

    state: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
