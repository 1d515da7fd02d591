"""Functions of one number, inlined into the loops that call them: a formula for each type, made known to numba."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

Function = Callable[..., Any]

_pending: list[tuple[Function, Function, Any]] = []


def inlined(*, fastmath: Any = False) -> Callable[[Function], Function]:
    """Decorates a factory `(real) -> formula`: the name becomes a function for loops to call, which is inlined there.

    `real` is the type of its first argument, or of that array's elements; `fastmath` says how far LLVM may depart from
    what is written there.
    """

    def decorate(factory: Function) -> Function:
        def function(*args: Any) -> Any:
            return factory(args[0].dtype.type)(*args)

        for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(function, attribute, getattr(factory, attribute))  # numba finds it again by these
        _pending.append((function, factory, fastmath))
        return function

    return decorate


def register_formulas() -> None:
    """Makes numba know the functions that loops call."""
    overload = import_module("numba.extending").overload
    while _pending:
        function, factory, fastmath = _pending.pop()

        def choose(*args: Any, factory: Function = factory) -> Any:
            return factory(getattr(np, str(getattr(args[0], "dtype", args[0]))))

        options = {"fastmath": fastmath, "forceinline": True, "error_model": "numpy"}
        overload(function, strict=False, jit_options=options)(choose)
