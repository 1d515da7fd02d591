"""Base programs with an identity, by which an interpreter knows one that it has seen before."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, final

from ..ops.trees import Structure, flatten, unflatten


@final
class BaseProgram:
    """`base(ops, *trees)` on pytrees of refs, as a program on their leaves, `(ops, *refs) -> refs`.

    key         two programs of one key, on trees of one structure, do the same; None if nobody knows
    result      the structure of what it returned; set when it has run, or by an interpreter that knows it
    spare       the leaves, by their numbers, over which results may be written: those with True where they are, those
                with False only in a copy. An interpreter that makes use of it sets
    finish      what must be called before anything is read of what the program returned, and writes over those leaves;
                it does not fail, and not to call it leaves them as they are
    """

    __slots__ = ("base", "structure", "key", "result", "spare", "finish")

    def __init__(
        self,
        base: Callable[..., Any],
        structure: Structure,
        key: Hashable = None,
        spare: Mapping[int, bool] = MappingProxyType({}),
    ):
        self.base = base
        self.structure = structure
        self.key = None if key is None else (key, structure)
        self.result: Structure | None = None
        self.spare = spare
        self.finish: Callable[[], None] = _done

    @property
    def finishes(self) -> bool:
        """Whether `finish` does anything."""
        return self.finish is not _done

    def __call__(self, ops: Any, *refs: Any) -> tuple[Any, ...]:
        values, self.result = flatten(self.base(ops, *unflatten(self.structure, refs)))
        return tuple(values)


def _done() -> None:
    """What most programs need to be finished."""
