"""The namespace of generated kernels on the CPU."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ..formulas import scalar_formulas
from . import functions


@cache
def namespace() -> dict[str, Any]:
    """Return the names that the source of a kernel may refer to."""
    exp, erf = functions.exp, functions.erf
    memory = import_module("opstage.interpreters.native.memory")
    names: dict[str, Any] = {
        "int64s": memory.int64s,
        "float32": np.float32,
        "float64": np.float64,
        "int32": np.int32,
        "int64": np.int64,
        "exp": exp,
        "erf": erf,
        "tanh": functions.tanh,
        "add": functions.add,
        "power": _power,
        "log": functions.log,
        "log1p": functions.log1p,
        "log2": functions.log2,
        "log10": np.log10,
        "exp2": functions.exp2,
        "atan": functions.atan,
        "sqrt": math.sqrt,
        "sin": np.sin,
        "cos": np.cos,
        "floor": np.floor,
        "rint": np.rint,
    }
    names["uint8"] = np.uint8
    for real in (np.float32, np.float64):
        ordered, unordered, least = _order(real)
        names[f"least_{real.__name__}"] = least
        names[f"nan_{real.__name__}"] = real(np.nan)
        formulas = {"ordered": ordered, "unordered": unordered, **scalar_formulas(real, exp, erf, math.fmod, np.floor)}
        names.update({f"{name}_{real.__name__}": formula for name, formula in formulas.items()})
    return names


def _power(x: Any, c: Any) -> Any:
    return x**c


def _order(real: Any) -> tuple[Any, Any, Any]:
    """Return functions that map floats to integers of the same order and back, and the least such integer. A float
    maximum that respects nan is not a vector instruction."""
    integer = np.int32 if real is np.float32 else np.int64
    info = np.iinfo(integer)
    sign, rest = integer(info.bits - 1), integer(info.max)

    def ordered(x: Any) -> Any:
        b = real(x).view(integer)
        return integer(b ^ integer(integer(b >> sign) & rest))

    def unordered(b: Any) -> Any:
        return integer(b ^ integer(integer(b >> sign) & rest)).view(real)

    return ordered, unordered, integer(info.min)
