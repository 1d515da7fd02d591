"""`Snapshot`: a training run at a step boundary, as plain values."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from ..ops.errors import UsageError
from .optim import Optimizer
from .optimizer_state import OptimizerState
from .position import Position
from .saved import CallbackValues, OptimizerValues, TrainerValues
from .trainer import ScalarTrainer

PACKAGES = ("opstage", "numpy", "numba", "safetensors")
"""Packages whose version can change a run's bits."""


def versions() -> dict[str, str]:
    """The versions that a run's bits depend on: Python and `PACKAGES`."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run: its trainer and optimizer, where its loop stands, what it was told to do, and what it ran on.

    config      whatever describes the run, plain JSON data
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
        """Whose state it is."""

    def export(self) -> CallbackValues:
        """All that it must remember."""


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
    """The snapshot of a run as it stands; `state` is that of `optimizer`, and both are given or neither.

    Unless `fetched`, its tensors stay where they are and come one by one to whoever reads them, until the next step.
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
