"""Base programs with an identity, by which an interpreter recognises a program that it has seen before; and actions
that take effect together.

Python runs signal handlers and trace functions, and raises exceptions set by another thread, only between two
bytecodes. So one bytecode that only calls functions written in C is never interrupted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from operator import call, is_
from types import MappingProxyType, MethodType
from typing import Any, TypeAlias, final

from typing_extensions import override

from ..ops.trees import Structure, flatten, unflatten

Action: TypeAlias = "Callable[[], Any]"
"""A function written in C, or a `partial` of one; exceptions could interrupt a Python function."""


def at_once(actions: Sequence[Action]) -> None:
    """Call the actions in order. The caller must keep a reference to any object that they replace: a finaliser runs
    Python."""
    deque(map(call, actions), 0)


setting: Callable[[object, str, Any], Action] = partial(partial, object.__setattr__)
"""The assignment `holder.name = value` to an existing attribute, also where `holder` is frozen."""


Finish: TypeAlias = "Callable[[Sequence[Action]], None]"
"""Completes what a program returned, and calls the actions, all at once where possible."""


@final
class Identity:
    """A callable as part of a key: equal only to itself, however its class defines equality.

    A bound method is a new object at each access; two are the same if their objects and functions are.
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

    structure   of the trees; None for a base that takes and returns plain refs, with its own structure
    key         two programs with the same key, on trees of the same structure, do the same; None if unknown
    result      the structure of what it returned; set when it has run, or by an interpreter that knows it
    donated     the leaves, by number, that results may overwrite: those with True in place, those with False only in a
                copy. An interpreter that overwrites leaves sets
    finish      a function to call before the results are read. It overwrites those leaves, and its actions take effect
                at the same time (see `at_once`); if it is not called, the leaves keep their values
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
        """Return whether `finish` does anything."""
        return self.finish is not at_once

    def __call__(self, ops: Any, *refs: Any) -> tuple[Any, ...]:
        if self.structure is None:
            values, self.result = self.base(ops, *refs)
        else:
            values, self.result = flatten(self.base(ops, *unflatten(self.structure, refs)))
        return tuple(values)
