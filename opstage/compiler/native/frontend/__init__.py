"""A compiler front end: functions in a small subset of Python become LLVM instructions.

Kernels are loops over numbers in memory. They need integers, floats, `for` over a range, `while`, `if`, tuples, and
calls of functions in the same subset; `functions` has the statements, `expressions` and `arithmetic` the rest. The
semantics are numba's, which compiles far more of Python and took five times as long as LLVM after it.

What differs from Python: integers have 64 bits and wrap around; a variable has one type; `and` and `or` give truth
values; a division of integers by 0 gives 0.
"""

from .functions import lowered
from .types import (
    CannotCompile,
    FunctionSource,
    Intrinsic,
    Packed,
    allocated,
    declared,
    intrinsic,
    source_of,
    source_of_text,
)

__all__ = [
    "CannotCompile",
    "FunctionSource",
    "Intrinsic",
    "Packed",
    "allocated",
    "declared",
    "intrinsic",
    "lowered",
    "source_of",
    "source_of_text",
]
