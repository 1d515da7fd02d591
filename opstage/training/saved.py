"""The saved form of a trainer: host arrays by dotted path, the checks before restoring, and the search for numbers that
are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ..data.loader import OwnRows
from ..ops.errors import OpstageError, ShapeError, UsageError, nearest
from ..ops.trees import show_path
from ..ops.types import DType, Shape, TensorType, dtype_name, show_shape

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


def require_same_types(ops: Any, paths: Sequence[str], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise ShapeError if a new state changes shape or dtype, since the next step would then be another program."""
    for path, old, new in zip(paths, before, after):
        if not hasattr(new, "shape"):
            continue

        def message(path: str = path, old: Any = old, new: Any = new) -> str:
            types = [f"{show_shape(ref.shape)} {dtype_name(ref.dtype)}" for ref in (new, old)]
            return (
                f"the new state{path and f' {path}'} is {types[0]}, but the state that it replaces is {types[1]}: it "
                "must keep its shape and dtype from step to step"
            )

        # symbolic sizes are checked by the step itself: a condition on them would count as a use of the state
        known = all(a == b for a, b in zip(new.shape, old.shape) if isinstance(a, int) and isinstance(b, int))
        if len(new.shape) != len(old.shape) or new.dtype != old.dtype or not known:
            error = ShapeError(message(), op="state")
            error.about = ops.adopt(new)
            raise error


# Numbers that are no longer finite ------------------------------------------------------------------------------------

_AT_A_TIME = 1 << 18  # elements: a mask for the whole array would take a quarter of its memory again


@final
class NotFiniteError(OpstageError, ArithmeticError):
    """A loss, a metric, a parameter or an optimizer's moment is nan or infinite.

    reason   the value that is not finite
    step     number of training steps taken until it was found; None if no step caused it
    """

    def __init__(self, reason: str, step: int | None = None):
        self.reason = reason
        self.step = step
        where = "" if step is None else f"step {step}: "
        super().__init__(
            f"{where}{reason}; Options(detect_anomaly=True) stops at the op that makes the first value that is not "
            "finite, and names its line; require_finite=False goes on regardless"
        )

    @property
    def place(self) -> str:
        """The message: `step 7: the loss is nan`."""
        return self.reason if self.step is None else f"step {self.step}: {self.reason}"


def require_finite_loss(loss: float, step: int, batch: Sequence[Any] = (), names: Sequence[str] = ()) -> None:
    """Raise NotFiniteError unless the loss of `batch` is finite; the message also says if the batch is not."""
    if math.isfinite(loss):
        return
    for i, each in enumerate(batch):
        array = each.held if isinstance(each, OwnRows) else np.asarray(each)
        at = first_not_finite(array)
        if at is not None:
            name = names[i] if i < len(names) else f"argument {i}"
            where = each.whole_index(at) if isinstance(each, OwnRows) else at
            raise NotFiniteError(f"the loss is {loss}, of a batch whose {name} is {_shown(array[at], where)}", step)
    raise NotFiniteError(f"the loss is {loss}", step)


def require_finite_numbers(what: str, numbers: Mapping[str, float], step: int) -> None:
    """Raise NotFiniteError for the first of `numbers` that is not finite. The message is `what` and its name."""
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise NotFiniteError(f"{what}{name} is {number}", step)


def require_finite_values(trainer: TrainerValues, optimizer: OptimizerValues | None = None) -> None:
    """Raise NotFiniteError if a parameter, the program's state or a moment is nan or infinite.

    Frozen parameters are not checked: a mask may hold infinities on purpose. An `Unfetched` tensor is looked through
    where it stands, and fetched if it has such a number.
    """
    states = [*trainer.moments.values(), *([] if optimizer is None else [optimizer])]
    for name, each in _arrays(trainer, states):
        if isinstance(each, Unfetched) and each.is_finite():
            continue
        array = np.asarray(each)
        at = first_not_finite(array)
        if at is not None:
            raise NotFiniteError(f"{name} is {_shown(array[at], at)}", trainer.steps_taken)


def first_not_finite(array: npt.NDArray[Any]) -> tuple[int, ...] | None:
    """Return the index of the first element that is nan or infinite, or None."""
    if array.dtype.kind != "f":
        return None
    flat = array.reshape(-1)
    for start in range(0, flat.size, _AT_A_TIME):
        finite = np.isfinite(flat[start : start + _AT_A_TIME])
        if not finite.all():
            return tuple(int(i) for i in np.unravel_index(start + int(finite.argmin()), array.shape))
    return None


def _shown(value: Any, at: tuple[int, ...]) -> str:
    return f"{value} at index {at}" if at else str(value)


def _arrays(trainer: TrainerValues, states: Sequence[OptimizerValues]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    trained = {path for values in states for path in values.slots}
    for path, array in trainer.params.items():
        if path in trained or not states:
            yield f"parameter {show_path(path)}", array
    for path, array in trainer.state.items():
        yield f"the program's state {show_path(path)}", array
    for values in states:
        for path, slots in values.slots.items():
            for i, slot in enumerate(slots):
                yield f"moment {i} of {values.name} for {show_path(path)}", slot
