"""Arrays that share memory at two places of a parameter tree, which leaves open whether two parameters are meant.

A `Param` is one parameter wherever it is (`ops.places`). An array is a value that a parameter copies, so one array at
two places may be meant as one tied parameter or as two with the same initial value. It is rejected or reported, never
guessed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from ..interpreters.host import owner_of
from ..interpreters.shape_check import Finding
from ..ops.errors import UsageError
from ..ops.trees import flatten, paths, show_path
from .param import Array, Param

RULE = "shared-array"
FIX = "make one Param of it and put that at both places for one parameter, or give one of them a copy for two"

_SHOWN = 4
_SWEEP = 256  # arrays between sweeps that drop dead entries
_WORK = 10_000  # candidates that NumPy may examine to decide whether two strided views overlap


class Shared(NamedTuple):
    """Two places of a tree with leaves that share memory; `same`: they are the same view of it."""

    first: str
    second: str
    same: bool

    def __str__(self) -> str:
        how = "are one array" if self.same else "are arrays that share memory"
        return f"{show_path(self.first)} and {show_path(self.second)} {how}"


def shared_arrays(tree: Any) -> list[Shared]:
    """Return the places of a tree with arrays that share memory with one at an earlier place, each once.

    A Param counts by its host value, since an array may be a view of it; a Param at two places is not reported.
    """
    leaves, _ = flatten(tree)
    known: dict[int, Array | None] = {}  # an array of another library may return a new copy each time
    arrays = [known[id(leaf)] if id(leaf) in known else known.setdefault(id(leaf), _memory(leaf)) for leaf in leaves]
    held = [i for i, array in enumerate(arrays) if array is not None and array.size]
    found: dict[int, int] = {}
    for i, j in _overlapping([arrays[i] for i in held], held):
        if not (isinstance(leaves[i], Param) and isinstance(leaves[j], Param)):
            first, second = min(i, j), max(i, j)
            found[second] = min(first, found.get(second, first))
    names = paths(tree) if found else []
    return [Shared(names[i], names[j], _same(arrays[i], arrays[j])) for j, i in sorted(found.items())]


def require_apart(tree: Any) -> None:
    """Raise a UsageError, with the places, if two arrays of a parameter tree share memory."""
    found = shared_arrays(tree)
    if found:
        shown = "; ".join(map(str, found[:_SHOWN])) + (f"; and {len(found) - _SHOWN} more" if found[_SHOWN:] else "")
        raise UsageError(f"parameters {shown}: {FIX}")


def shared_findings(tree: Any) -> tuple[Finding, ...]:
    """Return the same as warnings of a check, in which arrays may only stand for their shapes."""
    return tuple(
        Finding(
            f"params.{shared.second}".removesuffix("."),
            f"{shared}; they are checked as two parameters, and a trainer refuses them",
            rule=RULE,
            severity="warning",
            fix=FIX,
        )
        for shared in shared_arrays(tree)
    )


def _memory(leaf: Any) -> Array | None:
    """Return an array over the leaf's memory, or None if nothing could share that: numbers, Specs."""
    if isinstance(leaf, Param):
        return leaf.host
    if isinstance(leaf, np.ndarray):
        return leaf
    if isinstance(leaf, np.generic) or not hasattr(leaf, "__array__"):
        return None
    try:
        return np.asarray(leaf)  # another library's array: a view, if its memory is on the host
    except Exception:
        return None


def _overlapping(arrays: Sequence[Any], numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs that share memory, by index; arrays with disjoint bounds are never compared."""
    bounds = sorted((*np.lib.array_utils.byte_bounds(array), k) for k, array in enumerate(arrays))
    open_: list[tuple[int, int]] = []  # arrays that end after the current start: (end, index)
    for start, end, k in bounds:
        open_ = [(stop, other) for stop, other in open_ if stop > start]
        for _, other in open_:
            if _share(arrays[other], arrays[k]):
                yield numbers[other], numbers[k]
        open_.append((end, k))


def _share(a: Any, b: Any) -> bool:
    try:
        return np.shares_memory(a, b, max_work=_WORK)  # type: ignore[arg-type]  # NumPy takes any number
    except np.exceptions.TooHardError:
        return True  # undecidable in reasonable time


def _same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.strides == b.strides and a.dtype == b.dtype and a.ctypes.data == b.ctypes.data)


class _View(NamedTuple):
    """The memory layout of an array's elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contiguous: bool
    nbytes: int

    @classmethod
    def of(cls, array: Array) -> _View:
        return cls(array.ctypes.data, array.shape, array.strides, array.flags.forc, array.nbytes)

    def meets(self, other: _View) -> bool:
        """Whether both are the same array, or blocks of memory that overlap."""
        if not (self.contiguous and other.contiguous):
            return self == other
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


_Made: TypeAlias = "tuple[weakref.ref[Any] | None, list[tuple[_View, str]]]"
_NOBODY: _Made = (None, [])


@final
class Given:
    """The arrays from which parameters were created one by one, tracked while the owner of their memory lives."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, _Made] = {}

    def take(self, value: Any, param: Param) -> Finding | None:
        """Record that `param` was created from `value`; return a warning if another was created from the same
        memory."""
        if not isinstance(value, np.ndarray) or not value.size:
            return None
        owner = owner_of(value)
        known, made = self._known.get(id(owner), _NOBODY)
        if known is None or known() is not owner:  # another array lived at this address before
            if len(self._known) % _SWEEP == 0:
                self._known = {key: entry for key, entry in self._known.items() if entry[0] and entry[0]() is not None}
            made = []
            self._known[id(owner)] = weakref.ref(owner), made
        view = _View.of(value)
        other = next((name for seen, name in made if view.meets(seen)), None)
        made.append((view, str(param)))
        if other is None:
            return None
        return Finding(
            "param",
            f"{param} is made of the array of which {other} was made, or of a part of it; they are two parameters",
            rule=RULE,
            severity="warning",
            fix="use one Param in both places for one parameter, or give a copy of the array for two",
        )
