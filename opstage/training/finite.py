"""Divergence: a loss, metric, parameter or moment that is nan or infinite is an error unless
`require_finite=False`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ..data.loader import OwnRows
from ..ops.errors import OpstageError
from ..ops.trees import show_path
from .snapshot import OptimizerValues, TrainerValues, Unfetched

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
        """Return the message: `step 7: the loss is nan`."""
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
