"""Nodes with known inputs, computed on the host: exporters write arithmetic on shapes as nodes.

Integers and symbolic dims use the same arithmetic, that of dims, so that known values stay known for every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops import dims
from ..ops.dims import DimExpr, DimFloat
from ..ops.errors import UnsupportedError
from ..ops.types import BOOL, FLOAT32, INT64, DType
from .call import NodeCall
from .element_types import dtype_of
from .values import KnownValue, Value

LARGEST = 1 << 16
"""The largest number of elements of a result computed on the host; larger ones are left to the interpreter."""

Host = Callable[[NodeCall[Any]], "Value | tuple[Value | None, ...] | None"]
HOST: dict[str, Host] = {}


def host(*ops: str) -> Callable[[Host], Host]:
    def register(function: Host) -> Host:
        HOST.update(dict.fromkeys(ops, function))
        return function

    return register


def fold(call: NodeCall[Any]) -> Value | tuple[Value | None, ...] | None:
    """Return the outputs of a node with known inputs, or None if they cannot be computed on the host."""
    function = HOST.get(call.node.op)
    if function is None:
        return None
    if call.node.op not in ("Shape", "Size"):
        if not all(value is None or isinstance(value, KnownValue) for value in call.inputs):
            return None
        if sum(value.array.size for value in call.inputs if isinstance(value, KnownValue)) > LARGEST:
            return None
    return function(call)


def of(entries: npt.NDArray[Any], dtype: DType) -> KnownValue:
    """Return a KnownValue of numbers and dims, from an array or a scalar."""
    entries = np.asarray(entries)
    if entries.dtype == object and not any(isinstance(entry, (DimExpr, DimFloat)) for entry in entries.flat):
        return KnownValue(_narrowed(entries, dtype), dtype)
    return KnownValue(entries if entries.dtype == object else entries.astype(dtype), dtype)


def _narrowed(entries: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Convert Python numbers to a dtype; integers wrap around as in the file."""
    if dtype.kind in "iu":
        size, low = 1 << (8 * dtype.itemsize), int(np.iinfo(dtype).min)
        entries = _each(lambda e: (int(e) - low) % size + low, entries)
    return entries.astype(dtype)


def _objects(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.dtype == object else array.astype(object)


@host("Shape")
def _shape(call: NodeCall[Any]) -> KnownValue:
    shape = call.shape()
    start, end = int(call.attribute("start", 0)), call.attribute("end")
    array = np.empty(len(shape), object)
    array[:] = shape
    return of(array[slice(start, end)], INT64)


@host("Size")
def _size(call: NodeCall[Any]) -> KnownValue:
    return of(np.array(dims.prod(call.shape()), object), INT64)


@host("Constant")
def _constant(call: NodeCall[Any]) -> KnownValue:
    """Return the value of a Constant node, from whichever attribute holds it."""
    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        if name in call.node.attributes:
            dtype = INT64 if "int" in name else FLOAT32
            return KnownValue(np.array(call.attribute(name), dtype), dtype)
    value = call.attribute("value")
    if value is None:
        raise UnsupportedError("its value is of a kind that is not read: text or sparse")
    return KnownValue(value, value.dtype)


@host("ConstantOfShape")
def _constant_of_shape(call: NodeCall[Any]) -> KnownValue | None:
    value = call.attribute("value", np.zeros(1, np.float32))
    sizes = call.ints(0, "shape")
    if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) > LARGEST:
        return None
    return KnownValue(np.full(sizes, value.reshape(-1)[0]), value.dtype)


@host("Identity", "Dropout")
def _identity(call: NodeCall[Any]) -> KnownValue:
    return KnownValue(call.known(0, "x"), call.dtype())


@host("Cast")
def _cast(call: NodeCall[Any]) -> KnownValue | None:
    target = dtype_of(call.attribute("to"))
    x = call.known(0, "x")
    if x.dtype != object:
        if target.kind not in "iu" or x.dtype.kind != "f":
            return KnownValue(x.astype(target), target)
        return of(np.trunc(x).astype(object), target) if np.isfinite(x).all() else None
    if target.kind in "iu":
        return of(_each(_truncated, x), target)
    return KnownValue(x, target) if target.kind == "f" else None


def _truncated(entry: Any) -> Any:
    if isinstance(entry, (int, DimExpr)):
        return entry
    if isinstance(entry, DimFloat):
        return _floor(entry)  # of a size, which is never negative
    return math.trunc(entry)


def _floor(entry: Any) -> Any:
    """Return the floor of a known number."""
    if isinstance(entry, DimFloat):
        whole = entry.floor() if hasattr(entry, "floor") else None
        if whole is None:
            raise UnsupportedError(f"{entry} rounded down is not an expression in sizes")
        return whole
    return entry if isinstance(entry, DimExpr) else math.floor(entry)


def _each(function: Callable[..., Any], *arrays: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Apply a function to entries, which are numbers and dims, with NumPy's broadcasting."""
    spread = np.broadcast_arrays(*[_objects(array) for array in arrays])
    result = np.empty(spread[0].shape, object)
    for at in np.ndindex(*spread[0].shape):
        result[at] = function(*[array[at] for array in spread])
    return result


def _quotient(a: Any, b: Any) -> Any:
    """Divide integers towards zero, as ONNX does; sizes are never negative."""
    if isinstance(a, (DimExpr, DimFloat)) or isinstance(b, (DimExpr, DimFloat)):
        return dims.floor_div(a, b)
    if b == 0:
        raise UnsupportedError("an integer is divided by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _binary(name: str, numbers: Callable[..., Any], objects: Callable[..., Any]) -> None:
    @host(name)
    def apply(call: NodeCall[Any]) -> KnownValue | None:
        arrays, dtype = [call.known(i, "x") for i in range(len(call))], call.dtype()
        while len(arrays) > 2 and name in ("Max", "Min", "Sum"):
            arrays = [_each(objects, *arrays[:2]), *arrays[2:]]
        if len(arrays) == 1:
            return KnownValue(arrays[0], dtype)
        if dtype.kind == "f" and all(array.dtype != object for array in arrays):
            with np.errstate(all="ignore"):
                return KnownValue(np.asarray(numbers(*arrays), dtype), dtype)
        if dtype.kind == "b":
            return KnownValue(np.asarray(numbers(*arrays), dtype), dtype)
        return of(_each(objects, *arrays), dtype)


for _name, _numbers, _exact in (
    ("Add", np.add, lambda a, b: a + b),
    ("Sub", np.subtract, lambda a, b: a - b),
    ("Mul", np.multiply, lambda a, b: a * b),
    ("Max", np.maximum, dims.maximum),
    ("Min", np.minimum, dims.minimum),
):
    _binary(_name, _numbers, _exact)


def _ratio(a: Any, b: Any) -> Any:
    whole = isinstance(a, (int, DimExpr)) and isinstance(b, (int, DimExpr))
    return dims.ratio(a, b) if whole else a / b


@host("Div")
def _div(call: NodeCall[Any]) -> KnownValue:
    a, b, dtype = call.known(0, "a"), call.known(1, "b"), call.dtype()
    if dtype.kind == "f":
        if a.dtype != object and b.dtype != object:
            with np.errstate(all="ignore"):
                return KnownValue(np.asarray(np.divide(a, b), dtype), dtype)
        return of(_each(_ratio, a, b), dtype)
    return of(_each(_quotient, a, b), dtype)


@host("Mod")
def _mod(call: NodeCall[Any]) -> KnownValue | None:
    a, b = call.known(0, "a"), call.known(1, "b")
    if call.attribute("fmod", 0) or call.dtype().kind == "f" or (b.dtype != object and not b.all()):
        return None
    return of(_each(lambda x, y: x % y, a, b), call.dtype())


@host("Neg")
def _neg(call: NodeCall[Any]) -> KnownValue:
    return of(_each(lambda x: -x, call.known(0, "x")), call.dtype())


def _rounding(name: str, number: Callable[[Any], Any], entry: Callable[[Any], Any]) -> None:
    @host(name)
    def apply(call: NodeCall[Any]) -> KnownValue:
        x = call.known(0, "x")
        return KnownValue(number(x), call.dtype()) if x.dtype != object else of(_each(entry, x), call.dtype())


_rounding("Floor", np.floor, _floor)
_rounding("Ceil", np.ceil, lambda entry: -_floor(-entry))
_rounding("Sqrt", np.sqrt, lambda entry: entry**0.5)


def _compared(name: str, number: Callable[..., Any], entry: Callable[..., Any]) -> None:
    @host(name)
    def apply(call: NodeCall[Any]) -> KnownValue:
        a, b = call.known(0, "a"), call.known(1, "b")
        if a.dtype != object and b.dtype != object:
            return KnownValue(np.asarray(number(a, b)), BOOL)
        return KnownValue(_each(entry, a, b).astype(BOOL), BOOL)


_compared("Equal", np.equal, lambda a, b: bool(a == b))
_compared("Less", np.less, lambda a, b: bool(a < b))
_compared("LessOrEqual", np.less_equal, lambda a, b: bool(a <= b))
_compared("Greater", np.greater, lambda a, b: bool(a > b))
_compared("GreaterOrEqual", np.greater_equal, lambda a, b: bool(a >= b))
_compared("And", np.logical_and, lambda a, b: a and b)
_compared("Or", np.logical_or, lambda a, b: a or b)


@host("Not")
def _not(call: NodeCall[Any]) -> KnownValue:
    return KnownValue(np.logical_not(call.known(0, "x")), BOOL)


@host("Where")
def _where(call: NodeCall[Any]) -> KnownValue:
    mask, x, y = (call.known(i, "x") for i in range(3))
    return of(_each(lambda m, a, b: a if m else b, mask, x, y), call.dtype(1))


@host("Gather")
def _gather(call: NodeCall[Any]) -> KnownValue | None:
    x, index = call.known(0, "data"), call.known(1, "indices")
    axis = call.axis(0)
    if index.dtype == object or (index.size and not (-x.shape[axis] <= index.min() and index.max() < x.shape[axis])):
        return None
    return of(np.take(x, index, axis=axis), call.dtype())


@host("Concat")
def _concat(call: NodeCall[Any]) -> KnownValue:
    arrays = [call.known(i, "x") for i in range(len(call))]
    if any(array.dtype == object for array in arrays):
        arrays = [_objects(array) for array in arrays]
    return of(np.concatenate(arrays, axis=call.axis(0)), call.dtype())


@host("Unsqueeze")
def _unsqueeze(call: NodeCall[Any]) -> KnownValue:
    return KnownValue(np.expand_dims(call.known(0, "x"), tuple(call.axes([]) or ())), call.dtype())


@host("Squeeze")
def _squeeze(call: NodeCall[Any]) -> KnownValue:
    axes = call.axes(None)
    return KnownValue(np.squeeze(call.known(0, "x"), None if axes is None else tuple(axes)), call.dtype())


@host("Transpose")
def _transpose(call: NodeCall[Any]) -> KnownValue:
    return KnownValue(np.transpose(call.known(0, "x"), call.attribute("perm")), call.dtype())


@host("Reshape")
def _reshape(call: NodeCall[Any]) -> KnownValue | None:
    x, sizes = call.known(0, "x"), call.ints(1, "shape")
    if not all(isinstance(size, int) for size in sizes):
        return None
    if not call.attribute("allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return KnownValue(x.reshape(sizes), call.dtype())


@host("Expand")
def _expand(call: NodeCall[Any]) -> KnownValue | None:
    x, sizes = call.known(0, "x"), call.ints(1, "shape")
    if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) > LARGEST:
        return None
    return KnownValue(np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(sizes))), call.dtype())


@host("Range")
def _range(call: NodeCall[Any]) -> KnownValue | None:
    bounds = [call.number(i, name) for i, name in enumerate(("start", "limit", "delta"))]
    if not all(isinstance(each, (int, float)) for each in bounds) or bounds[2] == 0:
        return None
    start, limit, delta = bounds
    count = max(math.ceil((limit - start) / delta), 0)
    return (
        KnownValue((start + np.arange(count) * delta).astype(call.dtype()), call.dtype()) if count <= LARGEST else None
    )


@host("Slice")
def _slice(call: NodeCall[Any]) -> KnownValue | None:
    x = call.known(0, "data")
    starts, ends = _bounds(call)
    axes = call.axes(range(len(starts)), at=3) or []
    steps = call.ints(4, "steps") if call.has(4) else [1] * len(starts)
    at: list[Any] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if not all(isinstance(each, int) for each in (start, end, step)):
            return None
        if step < 0:  # ONNX clamps an end below the first entry; Python would count it from the last
            end = None if end < -x.shape[axis] else end
        at[axis] = slice(start, end, step)
    return of(x[tuple(at)], call.dtype())


def _bounds(call: NodeCall[Any]) -> tuple[list[Any], list[Any]]:
    if call.has(1):
        return call.ints(1, "starts"), call.ints(2, "ends")
    return call.attribute("starts", []), call.attribute("ends", [])


def _product(entries: list[Any]) -> Any:
    whole = all(isinstance(entry, (int, DimExpr)) for entry in entries)
    return dims.prod(entries) if whole else math.prod(entries)


def _reduced(name: str, function: Callable[[list[Any]], Any]) -> None:
    @host(name)
    def apply(call: NodeCall[Any]) -> KnownValue | None:
        x = call.known(0, "x")
        axes = call.axes(None)
        if x.ndim != 1 or axes not in (None, [], [0], [-1]) or (not axes and call.attribute("noop_with_empty_axes", 0)):
            return None
        if not x.size:
            return None
        total = function(list(_objects(x)))
        array = np.empty((1,) if call.attribute("keepdims", 1) else (), object)
        array[...] = total
        return of(array, call.dtype())


_reduced("ReduceProd", _product)
_reduced("ReduceSum", sum)
_reduced("ReduceMax", lambda entries: dims.maximum(*entries))
_reduced("ReduceMin", lambda entries: dims.minimum(*entries))
