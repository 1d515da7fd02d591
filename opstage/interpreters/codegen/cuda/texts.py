"""The source of kernels, and the functions that they define."""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ...gpu import language
from ...gpu.counting import quotient, remainder, steps, unrolled_steps
from ...gpu.language import cuda, device_function
from ...gpu.rows import MOST_WARPS, joined_max, joined_sum
from ...gpu.tensors import going, part_of
from ..formulas import scalar_formulas


class Text(NamedTuple):
    """The source of a kernel.

    preamble    definitions of its constants
    body        `def kernel(count, …): …`
    """

    name: str
    preamble: str
    body: str

    def function(self) -> FunctionType:
        """Return the kernel; equal sources share a function, so that it is compiled once."""
        return _function(self)


@cache
def _function(text: Text) -> FunctionType:
    space = dict(_namespace())
    exec(text.preamble, space)
    exec(compile(text.body, f"<kernel {text.name}>", "exec"), space)
    kernel: FunctionType = space["kernel"]
    kernel.__name__ = kernel.__qualname__ = text.name
    return kernel


@cache
def _namespace() -> dict[str, Any]:
    """Return the names that the source of a kernel may refer to."""
    formulas = scalar_formulas(np.float32, language.exp, language.erf, language.fmod, language.floor)
    return {
        "cuda": cuda,
        "steps": steps,
        "unrolled_steps": unrolled_steps,
        "quotient": quotient,
        "remainder": remainder,
        "going": going,
        "part_of": part_of,
        "joined_sum": joined_sum,
        "joined_max": joined_max,
        "MOST_WARPS": MOST_WARPS,
        **{kind.__name__: kind for kind in (np.float32, np.int32, np.int64, np.uint8)},
        **{name: getattr(language, name) for name in _FUNCTIONS},
        **{f"{name}_float32": device_function(formula) for name, formula in formulas.items()},
    }


_FUNCTIONS = (
    "atan",
    "cos",
    "erf",
    "exp",
    "exp2",
    "floor",
    "log",
    "log10",
    "log1p",
    "log2",
    "power",
    "rint",
    "sin",
    "sqrt",
    "tanh",
)
