"""A snapshot taken apart into tensors by name and a JSON document, and put together again.

Names are `params/<path>`, `state/<path>`, `optimizer/<slot>/<path>` and `moments/<optimizer>/<slot>/<path>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .fit import EpochResult, Position
from .saved import Array, OptimizerValues, TrainerValues
from .snapshot import Snapshot


def to_document(snapshot: Snapshot) -> tuple[dict[str, Array], dict[str, Any]]:
    """(tensors, document); floats survive the way through JSON bit for bit."""
    trainer, optimizer = snapshot.trainer, snapshot.optimizer
    tensors = {f"params/{path}": array for path, array in trainer.params.items()}
    tensors |= {f"state/{path}": array for path, array in trainer.state.items()}
    moments = {}
    for name, values in trainer.moments.items():
        tensors |= _slot_tensors(f"moments/{name}", values)
        moments[name] = _optimizer_document(values)
    if optimizer is not None:
        tensors |= _slot_tensors("optimizer", optimizer)
    return tensors, {
        "steps_taken": trainer.steps_taken,
        "moments": moments,
        "optimizer": None if optimizer is None else _optimizer_document(optimizer),
        "position": asdict(snapshot.position),
        "config": dict(snapshot.config),
        "versions": dict(snapshot.versions),
    }


def from_document(tensors: Mapping[str, Array], document: Mapping[str, Any]) -> Snapshot:
    """The snapshot. Raises KeyError, TypeError or ValueError for a document that is not one of `to_document`."""
    moments = {name: _optimizer(f"moments/{name}", values, tensors) for name, values in document["moments"].items()}
    optimizer = document["optimizer"]
    position = document["position"]
    results = tuple(EpochResult(**result) for result in position["results"])
    return Snapshot(
        TrainerValues(_below("params", tensors), _below("state", tensors), document["steps_taken"], moments),
        None if optimizer is None else _optimizer("optimizer", optimizer, tensors),
        Position(**{**position, "results": results}),
        document["config"],
        document["versions"],
    )


def _slot_tensors(prefix: str, values: OptimizerValues) -> dict[str, Array]:
    return {f"{prefix}/{i}/{path}": slot for path, slots in values.slots.items() for i, slot in enumerate(slots)}


def _optimizer_document(values: OptimizerValues) -> dict[str, Any]:
    return {"name": values.name, "t": values.t, "slots": {path: len(slots) for path, slots in values.slots.items()}}


def _optimizer(prefix: str, document: Mapping[str, Any], tensors: Mapping[str, Array]) -> OptimizerValues:
    slots = {
        path: tuple(tensors[f"{prefix}/{i}/{path}"] for i in range(count)) for path, count in document["slots"].items()
    }
    return OptimizerValues(document["name"], document["t"], slots)


def _below(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    start = f"{prefix}/"
    return {name.removeprefix(start): array for name, array in tensors.items() if name.startswith(start)}
