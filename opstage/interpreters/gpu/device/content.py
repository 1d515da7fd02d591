"""A digest of a kernel's content: its code and that of its callees, with the constants that they read.

Functions with the same content compile to the same machine code, wherever they were defined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any


def digest_of(function: Callable[..., Any], *more: str) -> str:
    """Return the hexadecimal digest of a function from which kernels are compiled, and of other inputs."""
    digest = hashlib.sha256()
    for part in (*_function(function, set()), *more):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _function(function: Any, seen: set[int]) -> Iterator[str]:
    if id(function) in seen:
        return
    seen.add(id(function))
    yield f"function {function.__name__} {function.__defaults__} {function.__kwdefaults__}"
    yield from _code(function.__code__)
    for cell in function.__closure__ or ():
        yield from _value(cell.cell_contents, seen)
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name
            yield from _value(function.__globals__[name], seen)


def _code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield f"{code.co_argcount} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _value(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield a function's content, an intrinsic's source file (it emits instructions), or the repr of anything else:
    numbers, types, modules."""
    inner = getattr(value, "py_func", value)  # of a function that numba compiles into its callers
    if isinstance(inner, FunctionType):
        yield from _function(inner, seen)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(definition := getattr(value, "_defn", None), FunctionType):
        yield f"{definition.__qualname__} {text_of(definition.__code__.co_filename)}"
    else:
        yield f"{type(value).__qualname__} {value!r}"


@cache
def text_of(path: str) -> str:
    """Return the text of a source file at the first request."""
    return Path(path).read_text("utf-8")
