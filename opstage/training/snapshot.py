"""`Snapshot`: a training run at a step boundary, as plain values, and as named tensors with a JSON document.

Names are `params/<path>`, `state/<path>`, `optimizer/<slot>/<path>` and `moments/<optimizer>/<slot>/<path>`;
`callbacks/<number>/<array>` are arrays of the callback with that index in the document.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
import numpy.typing as npt

from ..files import Document, plain_number
from ..ops.errors import UsageError, nearest
from ..ops.trees import show_path
from ..ops.types import DType, Shape, TensorType, dtype_name, show_shape

if TYPE_CHECKING:
    from ..optim import Optimizer
    from .state import OptimizerState
    from .trainer import ScalarTrainer

# The values of a trainer: host arrays by dotted path ------------------------------------------------------------------

Array = npt.NDArray[Any]

_SHOWN = 8


@final
class Unfetched:
    """A tensor of a run that is fetched to the host each time it is read, and not kept.

    It can be read until the run takes its next step; afterwards reading raises UsageError. If `joins`, it is sharded
    over the ranks of several processes, which must all read it together.
    """

    __slots__ = ("shape", "dtype", "joins", "is_finite", "_fetch", "_stands")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        fetch: Callable[[], Array],
        stands: Callable[[], bool],
        *,
        joins: bool = False,
        is_finite: Callable[[], bool] = lambda: False,
    ):
        """`is_finite` says whether all elements are known to be finite, without fetching them."""
        self.shape, self.dtype, self.joins, self.is_finite = shape, dtype, joins, is_finite
        self._fetch, self._stands = fetch, stands

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if not self._stands():
            raise UsageError("the run has taken a step since; its tensors are to be read before the next one")
        found = np.asarray(self._fetch(), dtype)
        return np.array(found) if copy else found


@dataclass(frozen=True, eq=False)
class OptimizerValues:
    """An optimizer's state: its name, the steps taken, and the slots of each trained parameter by path."""

    name: str
    t: int
    slots: Mapping[str, tuple[Array, ...]]


@dataclass(frozen=True, eq=False)
class TrainerValues:
    """All that a trainer's next step depends on, except its loss, its options and the optimizer that is passed in.

    params        parameter values by path
    state         the program's own state (running statistics) by path
    steps_taken   steps so far; part of the seed of random draws
    moments       the states behind `adam_step` and the like, by the optimizer's name
    tied          for each parameter that is at several places the paths of all of them, the first as in `params`
    """

    params: Mapping[str, Array]
    state: Mapping[str, Array] = field(default_factory=dict)
    steps_taken: int = 0
    moments: Mapping[str, OptimizerValues] = field(default_factory=dict)
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class CallbackValues:
    """The state of a callback: plain JSON data, and arrays by name."""

    data: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


def require_fit(
    what: str,
    expected: Mapping[str, tuple[Shape, DType]],
    found: Mapping[str, Array | TensorType],
    tied: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> None:
    """Raise a UsageError that lists arrays that are missing, unexpected, or of another shape or dtype.

    tied   parameters that were shared when the arrays were saved: name -> places
    """
    problems = []
    origin = {path: name for name, paths in tied.items() for path in paths}
    unexpected = [name for name in found if name not in expected]
    for name, (shape, dtype) in expected.items():
        if name not in found:
            was = f": it was one parameter with {show_path(origin[name])}" if name in origin else ""
            problems.append(f"{show_path(name)} is missing{was or nearest(name, unexpected)}")
            continue
        array = found[name]
        if array.shape != tuple(shape) or array.dtype != np.dtype(dtype):
            problems.append(
                f"{show_path(name)}: expected {show_shape(shape)} {dtype_name(dtype)}, "
                f"found {show_shape(array.shape)} {dtype_name(array.dtype)}"
            )
    problems += [f"{show_path(name)} is not expected{nearest(name, expected)}" for name in unexpected]
    if problems:
        shown = [f"\n  {problem}" for problem in problems[:_SHOWN]]
        rest = f"\n  … and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise UsageError(f"{what} do not fit:{''.join(shown)}{rest}")


# The position of a training loop --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochResult:
    """The result of one epoch: mean training loss, held-out metrics (means per sample), and training time.

    counted    by how much the sums of the held-out metrics were divided: the number of samples, or what the metrics
               call `count`; None for an epoch that an older version has trained
    """

    epoch: int
    train_loss: float
    held_out: Mapping[str, float]
    seconds: float
    samples: int
    counted: float | None = None


@dataclass(frozen=True)
class Position:
    """A step boundary: `batch` steps of epoch `epoch` are done, both counted from 0, and the epochs of `results`.

    loss_sum, samples, seconds    the totals of the epoch so far; the loss is summed over samples
    lr_scale                      the factor by which callbacks have scaled the learning rate
    stopped                       why a callback has ended the run; empty while it continues
    """

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    samples: int = 0
    seconds: float = 0.0
    results: tuple[EpochResult, ...] = ()
    lr_scale: float = 1.0
    stopped: str = ""


# The snapshot ---------------------------------------------------------------------------------------------------------

PACKAGES = ("opstage", "numpy", "numba", "safetensors")
"""Packages with versions that can change a run's bits."""


def versions() -> dict[str, str]:
    """Return the versions that a run's bits depend on: Python and `PACKAGES`."""
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
        """Return the key of its state."""

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


# As named tensors and a document --------------------------------------------------------------------------------------


def to_document(snapshot: Snapshot) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return (tensors, document). Floats survive JSON bit for bit; those that are not finite become strings."""
    trainer, optimizer = snapshot.trainer, snapshot.optimizer
    tensors = {f"params/{path}": array for path, array in trainer.params.items()}
    tensors |= {f"state/{path}": array for path, array in trainer.state.items()}
    moments = {}
    for name, values in trainer.moments.items():
        tensors |= _slot_tensors(f"moments/{name}", values)
        moments[name] = _optimizer_document(values)
    if optimizer is not None:
        tensors |= _slot_tensors("optimizer", optimizer)
    callbacks = []
    for i, (name, kept) in enumerate(snapshot.callbacks.items()):  # an index, since a name may contain anything
        tensors |= {f"callbacks/{i}/{path}": array for path, array in kept.arrays.items()}
        callbacks.append({"name": name, "data": _plain(kept.data), "arrays": list(kept.arrays)})
    return tensors, {
        "steps_taken": trainer.steps_taken,
        "moments": moments,
        **({"tied": {name: list(paths) for name, paths in trainer.tied.items()}} if trainer.tied else {}),
        "optimizer": None if optimizer is None else _optimizer_document(optimizer),
        "position": _plain(asdict(snapshot.position)),
        **({"callbacks": callbacks} if callbacks else {}),
        "config": dict(snapshot.config),
        "versions": dict(snapshot.versions),
    }


def from_document(tensors: Mapping[str, Array], document: Document) -> Snapshot:
    """Return the snapshot. Raises UsageError, with the place, unless `to_document` could have written the document."""
    moments = {name: _optimizer(f"moments/{name}", m, tensors) for name, m in document["moments"].items()}
    optimizer, shared = document.get("optimizer"), document.get("tied")
    tied = {} if shared is None else _tied(shared, tensors)
    return Snapshot(
        TrainerValues(
            _below("params", tensors), _below("state", tensors), document["steps_taken"].count(), moments, tied
        ),
        None if optimizer is None else _optimizer("optimizer", optimizer, tensors),
        _position(document["position"]),
        document["config"].object(),
        {name: version.text() for name, version in document["versions"].items()},
        _callbacks(document.get("callbacks"), tensors),
    )


def _callbacks(document: Document | None, tensors: Mapping[str, Array]) -> dict[str, CallbackValues]:
    found: dict[str, CallbackValues] = {}
    for i, entry in enumerate(document.elements() if document is not None else []):
        arrays = {}
        for path in entry["arrays"].elements():
            if (tensor := f"callbacks/{i}/{path.text()}") not in tensors:
                raise path.error(f"names a tensor {tensor}, which the tensors file lacks")
            arrays[path.text()] = tensors[tensor]
        name = entry["name"].text()
        if name in found:
            raise entry["name"].error("expected each callback once")
        found[name] = CallbackValues(entry["data"].object(), arrays)
    return found


def _tied(document: Document, tensors: Mapping[str, Array]) -> dict[str, tuple[str, ...]]:
    """Return, for each parameter with several places, all of them, its own name first; no name may occur twice."""
    found: dict[str, tuple[str, ...]] = {}
    taken = set(_below("params", tensors))
    for name, places in document.items():
        first, *others = [path.text() for path in places.elements()] or [""]
        if first != name or f"params/{name}" not in tensors or not others or taken & set(others):
            raise places.error("expected a parameter and other places, which no other parameter has")
        if len(set(others)) != len(others):
            raise places.error("expected each place once")
        taken |= set(others)
        found[name] = (first, *others)
    return found


def _position(document: Document) -> Position:
    scale, stopped = document.get("lr_scale"), document.get("stopped")  # older runs were saved without these
    return Position(
        document["epoch"].count(),
        document["batch"].count(),
        document["loss_sum"].number(),
        document["samples"].count(),
        document["seconds"].number(),
        tuple([_result(result) for result in document["results"].elements()]),
        1.0 if scale is None else scale.number(),
        "" if stopped is None else stopped.text(),
    )


def _result(document: Document) -> EpochResult:
    counted = document.get("counted")  # older runs were saved without it
    return EpochResult(
        document["epoch"].count(),
        document["train_loss"].number(),
        {name: value.number() for name, value in document["held_out"].items()},
        document["seconds"].number(),
        document["samples"].count(),
        None if counted is None else counted.number(),
    )


def _plain(value: Any) -> Any:
    """Return plain data with only floats that JSON can hold."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return plain_number(value) if isinstance(value, float) else value


def _slot_tensors(prefix: str, values: OptimizerValues) -> dict[str, Array]:
    return {f"{prefix}/{i}/{path}": slot for path, slots in values.slots.items() for i, slot in enumerate(slots)}


def _optimizer_document(values: OptimizerValues) -> dict[str, Any]:
    return {"name": values.name, "t": values.t, "slots": {path: len(slots) for path, slots in values.slots.items()}}


def _optimizer(prefix: str, document: Document, tensors: Mapping[str, Array]) -> OptimizerValues:
    slots = {}
    for path, count in document["slots"].items():
        names = [f"{prefix}/{i}/{path}" for i in range(min(count.count(), len(tensors) + 1))]
        missing = [name for name in names if name not in tensors]
        if missing:
            raise count.error(f"names a tensor {missing[0]}, which the tensors file lacks")
        slots[path] = tuple([tensors[name] for name in names])
    return OptimizerValues(document["name"].text(), document["t"].count(), slots)


def _below(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    start = f"{prefix}/"
    return {name.removeprefix(start): array for name, array in tensors.items() if name.startswith(start)}
