"""`Snapshot`: a training run at a step boundary, as plain values."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from ..ops.errors import UsageError
from ..optim import Optimizer
from .position import Position
from .saved import CallbackValues, OptimizerValues, TrainerValues
from .state import OptimizerState
from .trainer import ScalarTrainer

PACKAGES = ("opstage", "numpy", "numba", "safetensors")
"""Packages with versions that can change a run's bits."""


def versions() -> dict[str, str]:
    """The versions that a run's bits depend on: Python and `PACKAGES`."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run: its trainer and optimizer, the position of its loop, its configuration, and the versions it ran on.

    config      a description of the run, plain JSON data
    callbacks   the states of its callbacks by name
    versions    of Python and the packages that computed it
    """

    trainer: TrainerValues
    optimizer: OptimizerValues | None = None
    position: Position = field(default_factory=Position)
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)
    callbacks: Mapping[str, CallbackValues] = field(default_factory=dict)


class Stateful(Protocol):
    """Anything with a name and a state: a callback."""

    @property
    def name(self) -> str:
        """The key of its state."""

    def export(self) -> CallbackValues:
        """Return all state to save."""


def take_snapshot(
    trainer: ScalarTrainer,
    optimizer: Optimizer | None = None,
    state: OptimizerState | None = None,
    position: Position | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Sequence[Stateful] = (),
    *,
    fetched: bool = True,
) -> Snapshot:
    """Return the snapshot of the current run; `state` is that of `optimizer`, and both are given or neither.

    Unless `fetched`, its tensors stay on the interpreter and are fetched one by one as they are read, until the next
    step.

    Raises:
        UsageError: an optimizer without its state, or a state alone.
    """
    if (optimizer is None) != (state is None):
        raise UsageError("a snapshot takes an optimizer together with its state, or neither")
    export_optim = trainer.export_optim if fetched else trainer.unfetched_optim
    held = None if optimizer is None or state is None else export_optim(optimizer, state)
    return Snapshot(
        trainer.export() if fetched else trainer.unfetched(),
        held,
        position if position is not None else Position(),
        dict(config if config else {}),
        callbacks={callback.name: callback.export() for callback in callbacks if callback.name},
    )
