"""Functions that emit instructions directly, for operations that the front end cannot express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from .kinds import ScalarKind


class Intrinsic(NamedTuple):
    """A function `build(builder, *operands)` that emits instructions with llvmlite's IRBuilder and returns the result
    or None."""

    name: str
    result: ScalarKind
    operands: tuple[ScalarKind, ...]
    build: Callable[..., Any]


def intrinsic(result: ScalarKind, *operands: ScalarKind) -> Callable[[Callable[..., Any]], Any]:
    """Decorate `build(builder, *operands)` to become an `Intrinsic`, a function that kernels can call."""
    return lambda build: Intrinsic(build.__name__, result, operands, build)


def declared(builder: Any, kind: Any, name: str) -> Any:
    """Declare an external function: LLVM's own, or the C library's."""
    module = builder.module
    return module.globals.get(name) or ir.Function(module, kind, name)


def allocated(builder: Any, kind: Any) -> Any:
    """Allocate memory on the stack once per call, and return its address."""
    with builder.goto_entry_block():
        return builder.alloca(kind)
