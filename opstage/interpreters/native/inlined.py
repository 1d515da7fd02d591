"""Scalar functions, inlined into the loops that call them: a formula for each type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

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
