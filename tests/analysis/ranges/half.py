"""Programs run as a dtype of 16 bits would: every float that an op gives is rounded to it before the next op reads it.

No interpreter here computes in those dtypes, so this is the oracle of ranges that are read in one of them. Ops round
once, as kernels do that accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import opstage
from opstage import Options, Spec
from opstage.analysis.ranges import ASSUMPTIONS
from opstage.facts.range_report import ranges_of
from opstage.interpreters.registry import make_interpreter
from opstage.ops.body import Body
from tests.analysis.ranges.test_ranges_of_ops import outside

F32 = Options(dtype="float32")


def half(array: Any, dtype: str) -> Any:
    """The array with its floats rounded to the nearest numbers of a dtype, ties to even, and kept in float32."""
    array = np.asarray(array)
    if array.dtype.kind != "f":
        return array
    with np.errstate(all="ignore"):
        if dtype == "float16":
            return array.astype(np.float16).astype(np.float32)
        bits = np.ascontiguousarray(array, np.float32).reshape(array.shape).view(np.uint32)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)
        return np.where(np.isnan(array), np.float32(np.nan), nearest)


def run(body: Body, arrays: Sequence[Any], dtype: str) -> list[Any]:
    """The outputs of a body whose every result is rounded."""
    ops = make_interpreter(F32)
    slots: dict[int, Any] = {slot: half(a, dtype) for slot, a in zip(body.inputs, arrays)}
    slots |= {constant.slot: half(constant.value, dtype) for constant in body.constants}
    with np.errstate(all="ignore"):
        for equation in body.equations:
            static = {
                name: float(half(np.float32(value), dtype))
                if name in ("value", "c") and type(value) is float
                else value
                for name, value in equation.static.items()
            }
            refs = tuple([ops.const(slots[s], dtype=slots[s].dtype) for s in equation.inputs])
            outs = ops.bind(equation.primitive, refs, static)
            slots |= {s: half(ops.get(out), dtype) for s, out in zip(equation.outputs, outs)}
    return [slots[s] for s in body.outputs]


def wrong(program: Any, arrays: Sequence[Any], dtype: str) -> list[str]:
    """Ranges of the outputs, for the bounds of these arrays and read in the dtype, that such a run contradicts."""
    arrays = [half(a, dtype) for a in arrays]
    if any(a.dtype.kind == "f" and (not a.size or not np.isfinite(a).all()) for a in arrays):
        return []
    report = opstage.check(program, *[Spec(a.shape, a.dtype) for a in arrays], options=F32)
    if not report.ok:
        return []
    names = [name for name in report.program.names if name][: len(arrays)]
    numbers = [(name, a) for name, a in zip(names, arrays) if a.dtype.kind in "iuf" and a.size]
    found = ranges_of(report, {name: (float(a.min()), float(a.max())) for name, a in numbers}, dtype)
    step = [np.asarray(3)] * (len(report.program.body.inputs) - len(arrays))
    outputs = run(report.program.body, [*arrays, *step], dtype)
    if set(found.assumptions) - set(ASSUMPTIONS) and any(np.isnan(value).any() for value in outputs):
        return []  # as in the oracle of the other dtypes
    pairs = zip(found.outputs, outputs, strict=True)
    return [f"{known}: {w}" for (_, known), value in pairs if (w := outside(known, value))]
