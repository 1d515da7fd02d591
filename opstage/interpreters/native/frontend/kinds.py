"""The types of values in kernels."""

from __future__ import annotations

from typing import Any, TypeAlias, final

import numpy as np
from llvmlite import ir


@final
class ScalarKind:
    """A type. `type` is LLVM's; `family` is "int", "uint", "bool", "float", or "other", for intrinsics only."""

    __slots__ = ("name", "type", "family", "bits")

    def __init__(self, name: str, type_: Any, family: str = "other", bits: int = 0):
        self.name, self.type, self.family, self.bits = name, type_, family, bits

    def __repr__(self) -> str:
        return self.name

    @property
    def whole(self) -> bool:
        return self.family in ("int", "uint", "bool")


BOOL = ScalarKind("bool", ir.IntType(1), "bool", 1)
UINT8 = ScalarKind("uint8", ir.IntType(8), "uint", 8)
INT32 = ScalarKind("int32", ir.IntType(32), "int", 32)
INT64 = ScalarKind("int64", ir.IntType(64), "int", 64)
UINT64 = ScalarKind("uint64", ir.IntType(64), "uint", 64)
FLOAT32 = ScalarKind("float32", ir.FloatType(), "float", 32)
FLOAT64 = ScalarKind("float64", ir.DoubleType(), "float", 64)
VOID = ScalarKind("void", ir.VoidType())
WORDS = ScalarKind("words", ir.IntType(64).as_pointer())
"""64-bit signed integers in consecutive memory: `w[i]`, by address."""

OF_NUMPY = {getattr(np, kind.name): kind for kind in (UINT8, INT32, INT64, UINT64, FLOAT32, FLOAT64)} | {np.bool_: BOOL}


@final
class Value:
    """A run-time value of a kernel. Everything else in a kernel's text is known at compile time."""

    __slots__ = ("kind", "ir")

    def __init__(self, kind: ScalarKind, at: Any):
        self.kind, self.ir = kind, at

    def __repr__(self) -> str:
        return f"a number {self.kind}"

    @property
    def constant(self) -> Any:
        """The number, if it is constant; else None."""
        return self.ir.constant if isinstance(self.ir, ir.Constant) else None


@final
class Known:
    """The kind of an object known at compile time: a function, a type, a namespace."""

    __slots__ = ("object",)

    def __init__(self, known: Any):
        self.object = known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and other.object is self.object

    def __hash__(self) -> int:
        return id(self.object)


def constant(number: Any) -> Value | None:
    """Convert a number to a value: an int to int64, a float to float64, NumPy scalars to their type; None for the
    rest."""
    if isinstance(number, (bool, np.bool_)):
        return Value(BOOL, ir.Constant(BOOL.type, int(number)))
    if isinstance(number, np.generic):
        kind = OF_NUMPY.get(type(number))
        if kind is None:
            return None
        plain = number.item()
        if kind.family == "uint":
            plain = plain - (1 << kind.bits) if plain >> (kind.bits - 1) else plain
        return Value(kind, ir.Constant(kind.type, plain))
    if isinstance(number, int):
        return Value(INT64, ir.Constant(INT64.type, number))
    if isinstance(number, float):
        return Value(FLOAT64, ir.Constant(FLOAT64.type, number))
    return None


Kinds: TypeAlias = "ScalarKind | Known | tuple[Kinds, ...]"
"""The kind of a variable: of a value, of an object known at compile time, or of a tuple of these."""
