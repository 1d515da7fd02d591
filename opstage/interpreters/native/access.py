"""Numbers read and written by address, with what a compiler needs to know to use vector instructions.

Every access belongs to a *scope*, and memory of two scopes never overlaps, or only at the very element that is read and
then written. Without this LLVM would compare all addresses before every loop, and give up where there are many.

numba and LLVM are imported when the first function is made, for who only names scopes needs neither.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"
from __future__ import annotations

from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

READ = "read"
"""The scope of what is only read."""

WRITTEN = 48
"""How many scopes there are for what is written, `written(0)` and so on."""


@cache
def _tools() -> SimpleNamespace:
    """The modules that build accesses; `kinds` are numba's type, LLVM's and the bytes, by dtype."""
    ir, types = import_module("llvmlite.ir"), import_module("numba").types
    kinds = {
        "float32": (types.float32, ir.FloatType(), 4),
        "float64": (types.float64, ir.DoubleType(), 8),
        "int32": (types.int32, ir.IntType(32), 4),
        "int64": (types.int64, ir.IntType(64), 8),
        "bool": (types.uint8, ir.IntType(8), 1),
    }
    return SimpleNamespace(kinds=kinds, types=types, intrinsic=import_module("numba.extending").intrinsic)


def written(i: int) -> str:
    """The scope of the i-th tensor that a kernel writes."""
    return f"written {i}"


@cache
def load(dtype: str, scope: str = READ) -> Any:
    """`load(address, i)`: number i from an address."""
    tools = _tools()
    types, (real, kind, size) = tools.types, tools.kinds[dtype]

    @tools.intrinsic
    def load_number(typing, address, index):
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            base = builder.inttoptr(values[0], kind.as_pointer())
            found = builder.load(builder.gep(base, [values[1]]))
            found.align = size
            _mark(builder.module, found, scope)
            return found

        return real(types.intp, types.intp), generate

    return load_number


@cache
def store(dtype: str, scope: str) -> Any:
    """`store(address, i, x)`: x as number i from an address."""
    tools = _tools()
    types, (real, kind, size) = tools.types, tools.kinds[dtype]

    @tools.intrinsic
    def store_number(typing, address, index, value):
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            base = builder.inttoptr(values[0], kind.as_pointer())
            stored = builder.store(values[2], builder.gep(base, [values[1]]))
            stored.align = size
            _mark(builder.module, stored, scope)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, real), generate

    return store_number


def _mark(module: Any, instruction: Any, scope: str) -> None:
    domain = module.add_metadata(["opstage"])
    names = [READ, *map(written, range(WRITTEN))]
    scopes = {name: module.add_metadata([name, domain]) for name in names}
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[scope]]))
    instruction.set_metadata("noalias", module.add_metadata([scopes[name] for name in names if name != scope]))
