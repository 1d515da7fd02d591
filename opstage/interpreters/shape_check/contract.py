"""The shapes and ranges that were promised, held against everything that comes: batches, arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...data.loader import OwnRows
from ...ops.array_conversion import as_numpy
from ...ops.dims import Dim, DimScope, MissingSizeError, Verdict, at_most, evaluate
from ...ops.errors import DtypeError, LocatedError, RangeError, ShapeError
from ...ops.spec import Spec, as_specs, lists_by_specs
from ...ops.trees import align, flatten
from ...ops.types import FLOAT32, DType, TensorType, dtype_name, show_shape
from .report import Assumption, require_allowed

_SIGNATURES = 1 << 12


class Contract:
    """Specs of a batch. A signature (shapes and dtypes) that passed once is known and costs one set lookup. Elements
    are looked at each time where a Spec declares their range.

    `owner` and `given` are for errors: to whom what was promised.
    """

    def __init__(self, specs: tuple[Any, ...], names: list[str], owner: str = "the trainer", given: str = "batch"):
        self._trees = tuple(as_specs(tree) for tree in specs)
        self._specs, self._structure = flatten(self._trees)
        self._scope = DimScope()
        self._types: list[TensorType] = [spec.bind(self._scope, FLOAT32) for spec in self._specs]
        for spec in self._specs:
            spec.declare(self._scope)
        self.names = names
        self._owner = owner
        self._given = given
        self._conditions: list[Assumption] = []
        self._known: set[tuple[Any, ...]] = set()
        self._bounded = [at for at, spec in enumerate(self._specs) if spec.range is not None]

    def assume(self, conditions: Sequence[Assumption]) -> None:
        """Enforce relations that the check could not decide, for every batch."""
        self._conditions = [*self._conditions, *conditions]

    def arrays(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the batch with lists of numbers converted to arrays, see `lists_by_specs`."""
        made: tuple[Any, ...] = lists_by_specs(self._trees, batch)
        return made

    def unforeseen(self, batch: tuple[Any, ...]) -> None:
        """Validate a new signature, if there are no Specs. Any is valid here."""

    def check(self, batch: tuple[Any, ...], arrays: list[Any], refs: Sequence[Any]) -> None:
        """Raise for a batch that violates the Specs."""
        signature = tuple([(ref.shape, ref.dtype) for ref in refs])
        if signature not in self._known:
            self._check_signature(batch, arrays, refs)
            if len(self._known) >= _SIGNATURES:
                self._known.clear()
            self._known.add(signature)
        if self._bounded:
            self.check_values(arrays)

    @property
    def has_ranges(self) -> bool:
        """Whether a Spec declares a range, so that `check_values` looks at elements."""
        return bool(self._bounded)

    def check_values(self, arrays: Sequence[Any]) -> None:
        """Raise RangeError for an element outside the range that its Spec declares, and for one that is not finite."""
        for at in self._bounded:
            if not isinstance(arrays[at], Spec):
                _require_within(self.names[at], self._specs[at], arrays[at], self._given)

    def _check_signature(self, batch: tuple[Any, ...], arrays: list[Any], refs: Sequence[Any]) -> None:
        if not self._trees:
            self.unforeseen(batch)
        elif not any(isinstance(array, Spec) for array in arrays):
            align(self._structure, batch, f"{self._owner}'s specs", f"the {self._given}")
            try:
                self._check_specs(refs)
            except LocatedError as error:
                error.op = self._given
                raise

    def _check_specs(self, refs: Sequence[Any]) -> None:
        """Check shapes and dtypes, then declared facts about named dims, then undecided conditions."""
        sizes: dict[str, int] = {}
        axes: list[_Axis] = []
        for name, spec, type_, ref in zip(self.names, self._specs, self._types, refs):
            shape = tuple(ref.shape)
            if len(shape) != len(type_.shape):
                raise _mismatch(name, shape, f"has rank {len(shape)} but {spec} has rank {len(type_.shape)}")
            if _kind(ref.dtype) != _kind(type_.dtype):
                why = f"{name} is {dtype_name(ref.dtype)} but {spec} promised {_kind(type_.dtype)}"
                raise DtypeError(why)
            axes += [_Axis(name, spec, shape, axis, dim) for axis, dim in enumerate(type_.shape)]
        unread = [axis for axis in axes if not axis.read(sizes, self._scope.names)]
        while any(axis.solve(sizes, self._scope.names) for axis in unread):
            pass
        for axis in unread:
            axis.compare(sizes)
        require_allowed(self._scope, self._conditions, sizes, self._given)


_FAR = 2**40  # min(N, 4) is linear at first too, but not this far


class _Axis(NamedTuple):
    """One axis of a batch argument and the dim in its Spec."""

    name: str
    spec: Spec
    shape: tuple[int, ...]
    axis: int
    dim: Dim

    @property
    def size(self) -> int:
        return self.shape[self.axis]

    def read(self, sizes: dict[str, int], names: Iterable[str]) -> bool:
        """Record the size of a dim that is a plain name; return False for those left to `solve` and `compare`."""
        alone = str(self.dim)
        if alone not in names:
            return False
        if sizes.setdefault(alone, self.size) != self.size:
            raise self.mismatch(f"but {alone} is {sizes[alone]}")
        return True

    def solve(self, sizes: dict[str, int], names: Iterable[str]) -> bool:
        """Solve for the only unknown name of a linear expression such as 2*H or H + 1."""
        for name in names:
            if name in sizes or self.value(sizes) is not None:
                continue
            first, second, third, far = (self.value({**sizes, name: trial}) for trial in (1, 2, 3, _FAR))
            if first is None or second is None or third is None or far is None or first == second:
                continue
            if third - second != second - first or far - first != (second - first) * (_FAR - 1):
                continue
            steps, rest = divmod(self.size - first, second - first)
            if rest or steps < -1:
                raise self.mismatch(f"where {self.spec} wants {self.dim}")
            sizes[name] = 1 + steps
            return True
        return False

    def compare(self, sizes: Mapping[str, int]) -> None:
        expected = self.value(sizes)
        if expected is None:  # then all its values must match
            fits = Verdict.proved not in (at_most(self.dim, self.size - 1), at_most(self.size + 1, self.dim))
        else:
            fits = expected == self.size
        if not fits:
            raise self.mismatch(f"where {self.spec} wants {self.dim}")

    def value(self, sizes: Mapping[str, int]) -> int | None:
        """Return the dim at these sizes; None if one is missing."""
        try:
            return evaluate(self.dim, sizes)
        except MissingSizeError:
            return None

    def mismatch(self, why: str) -> ShapeError:
        return _mismatch(self.name, self.shape, f"has {self.size} on axis {self.axis} {why}")


def _require_within(name: str, spec: Spec, given: Any, owner: str) -> None:
    """Of rows of which this process holds its own, these are looked at."""
    array = given.held if isinstance(given, OwnRows) else as_numpy(given)
    if spec.range is None or not array.size:
        return
    low, high = spec.range
    least, greatest = array.min(), array.max()  # nan where there is one
    if low <= least and greatest <= high and -math.inf < least and greatest < math.inf:
        return
    bad = ~((array >= low) & (array <= high) & (array > -math.inf) & (array < math.inf))
    at = tuple(map(int, np.argwhere(bad)[0]))
    where = given.whole_index(at) if isinstance(given, OwnRows) else at
    place = f" at {where}" if where else ""
    raise RangeError(f"{name} is {array[at]}{place}, outside of what {spec} declares", op=owner)


def _mismatch(name: str, shape: tuple[int, ...], why: str) -> ShapeError:
    return ShapeError(f"{name} is {show_shape(shape)}: it {why}")


def _kind(dtype: DType) -> str:
    return {"f": "floats", "O": "floats", "b": "a mask"}.get(dtype.kind, "integers")
