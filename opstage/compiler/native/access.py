"""Read and write numbers by address, with the alias information needed for vector instructions.

Every access belongs to a *scope*, and memory of two scopes never overlaps, or only at the very element that is read and
then written. Without this LLVM would compare all addresses before every loop, and give up where there are many.

The front end is imported when the first function is made, for who only names scopes does not need it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

# Access ---------------------------------------------------------------------------------------------------------------

# mypy: disable-error-code="no-untyped-def, untyped-decorator"


READ = "read"
"""The scope of read-only memory."""


def written(i: int) -> str:
    """Return the scope of the i-th tensor that a kernel writes."""
    return f"written {i}"


@cache
def load(dtype: str, scope: str = READ) -> Any:
    """Return the function `load(address, i)`: number i from an address."""
    from .frontend import intrinsic
    from .frontend.types import INT64

    kind = _kind(dtype)

    @intrinsic(kind, INT64, INT64)
    def load_number(builder, address, index):
        found = builder.load(builder.gep(builder.inttoptr(address, kind.type.as_pointer()), [index]))
        found.align = kind.bits // 8
        _mark(builder.module, found, scope)
        return found

    return load_number


@cache
def store(dtype: str, scope: str) -> Any:
    """Return the function `store(address, i, x)`: write x as number i from an address."""
    from .frontend import intrinsic
    from .frontend.types import INT64, VOID

    kind = _kind(dtype)

    @intrinsic(VOID, INT64, INT64, kind)
    def store_number(builder, address, index, value):
        stored = builder.store(value, builder.gep(builder.inttoptr(address, kind.type.as_pointer()), [index]))
        stored.align = kind.bits // 8
        _mark(builder.module, stored, scope)

    return store_number


def _kind(dtype: str) -> Any:
    """Return a dtype's kind in memory."""
    from .frontend import types

    return getattr(types, "UINT8" if dtype == "bool" else dtype.upper())


def _mark(module: Any, instruction: Any, scope: str) -> None:
    vars(module).setdefault(_ACCESSES, {}).setdefault(scope, []).append(instruction)


_ACCESSES = "opstage_accesses"
"""The attribute of a module with its accesses by scope, for the lifetime of the module."""


def write_scopes(module: Any) -> None:
    """Write the scope of each access into a module that is complete, and that it overlaps none of the others."""
    accesses = vars(module).pop(_ACCESSES, {})
    domain = module.add_metadata(["opstage"])
    scopes = {scope: module.add_metadata([scope, domain]) for scope in accesses}
    for scope, instructions in accesses.items():
        own = module.add_metadata([scopes[scope]])
        others = module.add_metadata([other for name, other in scopes.items() if name != scope])
        for instruction in instructions:
            instruction.set_metadata("alias.scope", own)
            instruction.set_metadata("noalias", others)


def vector_functions(dtype: str) -> tuple[Any, Any, Any]:
    """Return the functions of kernels for vectors in registers, those for rows in memory, and `int64s`, which reads
    words."""
    from .intrinsics import int64s
    from .vectors import registers, vectors

    return registers(dtype), vectors(dtype), int64s


# Inlined functions ----------------------------------------------------------------------------------------------------

Function = Callable[..., Any]


def inlined(*, fastmath: Any = False) -> Callable[[Function], Function]:
    """Decorate a factory `(real) -> formula`: the name becomes a function that loops can call, inlined there.

    `real` is the type of its first argument, or of that array's elements; `fastmath` has the flags that allow LLVM to
    deviate from the written formula.
    """
    flags = tuple(sorted(fastmath)) if fastmath else ()

    def decorate(factory: Function) -> Function:
        def function(*args: Any) -> Any:
            return factory(args[0].dtype.type)(*args)

        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(function, attribute, getattr(factory, attribute))
        function.formula_of = lambda dtype: (factory(getattr(np, dtype)), flags)  # type: ignore[attr-defined]
        return function

    return decorate
