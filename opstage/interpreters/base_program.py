"""Base programs with an identity, by which an interpreter knows one that it has seen before."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, final

from ..ops.trees import Structure, flatten, unflatten


@final
class BaseProgram:
    """`base(ops, *trees)` on pytrees of refs, as a program on their leaves, `(ops, *refs) -> refs`.

    key         two programs of one key, on trees of one structure, do the same; None if nobody knows
    result      the structure of what it returned; set when it has run, or by an interpreter that knows it
    """

    __slots__ = ("base", "structure", "key", "result")

    def __init__(self, base: Callable[..., Any], structure: Structure, key: Hashable = None):
        self.base = base
        self.structure = structure
        self.key = None if key is None else (key, structure)
        self.result: Structure | None = None

    def __call__(self, ops: Any, *refs: Any) -> tuple[Any, ...]:
        values, self.result = flatten(self.base(ops, *unflatten(self.structure, refs)))
        return tuple(values)
