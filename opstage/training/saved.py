"""The saved form of a trainer, as host arrays by dotted path, and checks before restoring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ..ops.errors import ShapeError, UsageError, nearest
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
