"""Calls of an op that are wrong in one thing: operands of other dtypes and shapes, odd static arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

import opstage
from tests.conformance.harness import inputs
from tests.samples.sample import BadCall, Sample

ODD: tuple[Any, ...] = (
    *(99, -99, 0, -1, 1.5, -0.5, float("nan"), 2**70, True, None, "nonsense"),
    *((), (0, 0), (99,), (1, 2, 3, 4, 5, 6, 7), [1.5], np.ones(3), {}, object()),
)
"""Values that few static arguments may have."""

DTYPES = ("int64", "bool", "float64", "int32", "float32")


def wrong_calls(sample: Sample, odd: tuple[Any, ...] = ODD) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Operands and static arguments. Some calls are right: not everything odd is wrong everywhere."""
    operands = inputs(sample, "float32")
    for i, operand in enumerate(operands):
        if isinstance(operand, list | tuple):
            yield _with(operands, i, []), dict(sample.static)
            for j, entry in enumerate(operand):
                for other in _others(entry):
                    yield _with(operands, i, _with(operand, j, other)), dict(sample.static)
        elif operand is not None:
            for other in _others(operand):
                yield _with(operands, i, other), dict(sample.static)
    for dtype in DTYPES:
        yield tuple(_cast_all(operand, dtype) for operand in operands), dict(sample.static)
    for name in _static_names(sample):
        for value in odd:
            yield operands, {**sample.static, name: value}


def far_indices(sample: Sample) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The sample with integers that name no entry."""
    operands = inputs(sample, "float32")
    for i, operand in enumerate(operands):
        if getattr(operand, "dtype", None) == np.int64 and operand.size:
            yield _with(operands, i, operand + 10**6), dict(sample.static)


def wrong_numbers(op: str) -> Iterator[BadCall]:
    """A number in place of a tensor, beside integers that hold no such number."""
    parameters = inspect.signature(getattr(opstage.Ops, op)).parameters.values()
    if [parameter.annotation for parameter in parameters][-2:] == ["R | Number", "R | Number"] and op != "select":
        yield BadCall(op, "number", lambda: (np.arange(3),), "", call=lambda ops, x: getattr(ops, op)(x, 0.5))


def _with(entries: Any, position: int, entry: Any) -> tuple[Any, ...]:
    changed = [*entries]
    changed[position] = entry
    return tuple(changed)


def _cast(array: Any, dtype: str) -> Any:
    return np.clip(np.nan_to_num(np.asarray(array)), -1e6, 1e6).astype(dtype)


def _cast_all(operand: Any, dtype: str) -> Any:
    if operand is None:
        return None
    return [_cast(entry, dtype) for entry in operand] if isinstance(operand, list | tuple) else _cast(operand, dtype)


def _others(operand: Any) -> Iterator[Any]:
    """An array in another dtype, of another rank, with another size along each axis."""
    array = np.asarray(operand)
    for dtype in DTYPES:
        yield _cast(array, dtype)
    yield from (array[None], array[None, None], np.zeros((), array.dtype))
    if array.ndim:
        yield np.zeros(array.shape[1:], array.dtype)
    for axis in range(array.ndim):
        for size in (0, array.shape[axis] + 1):
            yield np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]), array.dtype)


def _static_names(sample: Sample) -> list[str]:
    if sample.call is not None:
        return [*sample.static]
    parameters = inspect.signature(getattr(opstage.Ops, sample.op)).parameters.values()
    named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return [name for name in named if name not in ("seed", "site", "like", "weight")]  # refs, and any integers
