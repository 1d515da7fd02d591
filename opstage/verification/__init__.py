"""Certified bounds of programs: they hold for every input in a box, including rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from ..analysis.intervals import bounds as interval_bounds
from ..analysis.relaxations import bounds as linear_bounds
from ..api import execute
from ..ops.array_conversion import as_numpy
from ..ops.errors import UsageError
from ..ops.spec import Spec
from ..ops.tracebacks import called_by_users
from ..ops.transform import Box, is_box, map_boxes
from ..ops.types import DType, as_dtype
from ..options import Options, options_of
from ..program_arguments import bind_train, with_arrays
from ..transforms.base_program import Identity

Method: TypeAlias = Literal["interval", "crown"]
METHODS = ("interval", "crown")


@called_by_users
def bounds(
    program: Callable[..., Any],
    *args: Any,
    method: Method = "interval",
    options: Options | None = None,
    train: bool = False,
) -> Any:
    """Return boxes that contain the results of `program(ops, *args)` for all tensors in the boxes among `args`.

    args      pytrees of arrays, of `Box(lower, upper)`, and of Specs with numeric sizes and a declared range, which are
              boxes too. An array is exact: a float in the program's dtype
    method    "interval": op by op, at the cost of two to four forward passes; "crown": linear relaxations of the whole
              program, tighter but more expensive: a backward pass for each element of a result, and of each
              activation's input
    options   the interpreter that computes the bounds; they hold for the same interpreter, eager or compiled

    The result is a pytree like the program's, with a Box for each tensor. The box contains the exact real value,
    computed from numbers that the dtype represents. It also contains the value that any of Opstage's interpreters
    computes in that dtype: the ends are rounded outward. Nothing is known about an element from -inf to inf, which may
    be nan. Masks and integers have boxes too. If the inputs leave their values open, only comparisons, `select` and
    `cast` accept them.

    Raises:
        UsageError: an unknown method; an invalid box; products in tf32 or bf16.
        UnsupportedError: an op without bounds.
    """
    if method not in METHODS:
        raise UsageError(f"bounds: argument method: expected one of {', '.join(map(repr, METHODS))}, got {method!r}")
    options = options_of(options)
    require_plain_products(options)
    args = with_arrays(program, args)
    written, program = program, bind_train(program, train, args)
    args = tuple(
        [outward(declared_boxes(tree, str(i)), as_dtype(options.dtype), str(i)) for i, tree in enumerate(args)]
    )
    key = ("bounds", Identity(written), train, method)
    bound = interval_bounds if method == "interval" else linear_bounds
    return execute(lambda ops, *trees: bound(ops, program, *trees), args, options, program, key)


def require_plain_products(options: Options) -> None:
    """Raise UsageError if products round more than their dtype does."""
    if options.matmul_precision != "fp32":
        raise UsageError(
            f"bounds of products in {options.matmul_precision} are not supported. Set matmul_precision='fp32'."
        )


# Boxes of users -------------------------------------------------------------------------------------------------------


def declared_boxes(tree: Any, name: str) -> Any:
    """Return the tree with a box for each Spec: all tensors of its shape within its declared range."""
    return map_boxes(lambda leaf: _spec_box(leaf, name) if isinstance(leaf, Spec) else leaf, tree)


def _spec_box(spec: Spec, name: str) -> Box:
    sizes = spec.entries
    if spec.range is None:
        raise UsageError(f"argument {name}: expected a Spec with a range, got {spec}. Add range=(0, 1), or pass a Box.")
    if not all(str(size).isdecimal() for size in sizes):
        raise UsageError(f"argument {name}: expected numbers for all sizes, got {spec}. Bounds are those of tensors.")
    shape, dtype = tuple(map(int, sizes)), as_dtype(spec.dtype or "float64")
    low, high = spec.range
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        low, high = math.ceil(max(low, limits.min)), math.floor(min(high, limits.max))
        # converted to a float, the largest int64 is rounded up by one
        low, high = max(low, limits.min), min(high, limits.max)
    return Box(np.full(shape, low, dtype), np.full(shape, high, dtype))


def outward(tree: Any, dtype: DType, name: str) -> Any:
    """Return the tree with each box in `dtype`, never smaller than before; `name` is the argument's name in errors."""
    return map_boxes(lambda leaf: _cast(leaf, dtype, name) if is_box(leaf) else leaf, tree)


def _cast(box: Box, dtype: DType, name: str) -> Box:
    lower, upper = as_numpy(box.lower), as_numpy(box.upper)
    if lower.shape != upper.shape:
        raise UsageError(f"argument {name}: expected ends of a box with one shape, got {lower.shape} and {upper.shape}")
    if lower.dtype.kind not in "fiub" or upper.dtype.kind not in "fiub":
        raise UsageError(f"argument {name}: expected numbers as ends of a box, got {lower.dtype} and {upper.dtype}")
    bad = ~(lower <= upper)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise UsageError(
            f"argument {name}: expected lower <= upper everywhere in a box, got {lower[at]} and {upper[at]} at {at}"
        )
    if lower.dtype.kind != "f" and upper.dtype.kind != "f":
        return Box(lower, upper)
    return Box(_towards(lower, dtype, -np.inf), _towards(upper, dtype, np.inf))


def _towards(end: Any, dtype: DType, limit: float) -> Any:
    """Return the end in a dtype, moved to the next number outward if rounding moved it inward."""
    if end.dtype == dtype:
        return end
    with np.errstate(over="ignore"):
        cast = end.astype(dtype)
    inward = cast > end if limit < 0 else cast < end
    return np.where(inward, np.nextafter(cast, dtype.type(limit)), cast)
