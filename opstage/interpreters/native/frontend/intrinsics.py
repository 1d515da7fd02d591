"""Functions that write instructions themselves, for what the front end has no words for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from .kinds import ScalarKind


class Intrinsic(NamedTuple):
    """`build(builder, *operands)` writes instructions with llvmlite's IRBuilder and gives their result, or None."""

    name: str
    result: ScalarKind
    operands: tuple[ScalarKind, ...]
    build: Callable[..., Any]


def intrinsic(result: ScalarKind, *operands: ScalarKind) -> Callable[[Callable[..., Any]], Any]:
    """Decorates `build(builder, *operands)`, which becomes an `Intrinsic`: a function for kernels to call."""
    return lambda build: Intrinsic(build.__name__, result, operands, build)


def declared(builder: Any, kind: Any, name: str) -> Any:
    """A function that is defined elsewhere: LLVM's own, or the C library's."""
    module = builder.module
    return module.globals.get(name) or ir.Function(module, kind, name)


def allocated(builder: Any, kind: Any) -> Any:
    """The address of memory on the stack, one however often it is gone through."""
    with builder.goto_entry_block():
        return builder.alloca(kind)
