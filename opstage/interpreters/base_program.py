"""Base programs with an identity, by which an interpreter knows one that it has seen before."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import is_
from types import MappingProxyType, MethodType
from typing import Any, TypeAlias, final

from typing_extensions import override

from ..ops.trees import Structure, flatten, unflatten
from .at_once import Action, at_once

Finish: TypeAlias = "Callable[[Sequence[Action]], None]"
"""Completes what a program returned, and calls the actions; in one moment wherever that can be done."""


@final
class Identity:
    """A callable as part of a key: equal to itself alone, whatever its class says of equality.

    A bound method is made anew whenever it is asked for, and is the same if its object and its function are.
    """

    __slots__ = ("_parts", "_hash")

    def __init__(self, of: Callable[..., Any]):
        self._parts = (of.__self__, of.__func__) if isinstance(of, MethodType) else (of,)
        self._hash = hash(tuple(map(id, self._parts)))

    @override
    def __hash__(self) -> int:
        return self._hash

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity) or len(self._parts) != len(other._parts):
            return False
        return all(map(is_, self._parts, other._parts))


@final
class BaseProgram:
    """`base(ops, *trees)` on pytrees of refs, as a program on their leaves, `(ops, *refs) -> refs`.

    structure   of the trees; None for a base that takes refs as they are and returns some, with a structure of its own
    key         two programs of one key, on trees of one structure, do the same; None if unknown
    result      the structure of what it returned; set when it has run, or by an interpreter that knows it
    donated     the leaves, by their numbers, over which results may be written: those with True where they are, those
                with False only in a copy. An interpreter that makes use of it sets
    finish      what must be called before anything is read of what the program returned, and writes over those leaves,
                with actions that take effect in the same moment (see `at_once`); not to call it leaves them as they are
    """

    __slots__ = ("base", "structure", "key", "result", "donated", "finish")

    def __init__(
        self,
        base: Callable[..., Any],
        structure: Structure | None,
        key: Hashable = None,
        donated: Mapping[int, bool] = MappingProxyType({}),
    ):
        self.base = base
        self.structure = structure
        self.key = None if key is None else (key, structure)
        self.result: Structure | None = None
        self.donated = donated
        self.finish: Finish = at_once

    @property
    def finishes(self) -> bool:
        """Whether `finish` does anything."""
        return self.finish is not at_once

    def __call__(self, ops: Any, *refs: Any) -> tuple[Any, ...]:
        if self.structure is None:
            values, self.result = self.base(ops, *refs)
        else:
            values, self.result = flatten(self.base(ops, *unflatten(self.structure, refs)))
        return tuple(values)
