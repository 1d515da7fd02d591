"""Equality of saved runs, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opstage.training.snapshot import OptimizerValues, Snapshot


def bits(arrays: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in arrays.items()}


def optimizer_bits(values: OptimizerValues | None) -> Any:
    if values is None:
        return None
    slots = {f"{path} {i}": slot for path, each in values.slots.items() for i, slot in enumerate(each)}
    return values.name, values.t, bits(slots)


def run_bits(snapshot: Snapshot) -> dict[str, Any]:
    """All of a run that must not depend on how often it was interrupted: everything but the seconds it took."""
    position = snapshot.position
    return {
        "params": bits(snapshot.trainer.params),
        "state": bits(snapshot.trainer.state),
        "steps_taken": snapshot.trainer.steps_taken,
        "moments": {name: optimizer_bits(values) for name, values in snapshot.trainer.moments.items()},
        "optimizer": optimizer_bits(snapshot.optimizer),
        "position": (position.epoch, position.batch, repr(position.loss_sum), position.samples),
        "results": [(r.epoch, repr(r.train_loss), repr(dict(r.held_out)), r.samples) for r in position.results],
    }


def same_snapshot(found: Snapshot, expected: Snapshot) -> None:
    assert run_bits(found) == run_bits(expected)
