"""`bounds`: bounds of a program's results over boxes of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from ..api import execute
from ..arguments import called_with, with_arrays
from ..interpreters.base_program import Identity
from ..interpreters.intervals.bounded import bounds as interval_bounds
from ..interpreters.relaxations.bounded import bounds as linear_bounds
from ..ops.errors import UsageError
from ..ops.tracebacks import called_by_users
from ..ops.types import as_dtype
from ..options import Options, options_of
from .boxes import declared_boxes, outward

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
    """Boxes that contain the results of `program(ops, *args)` for all tensors in the boxes among `args`.

    args      pytrees of arrays, of `Box(lower, upper)`, and of Specs with numeric sizes and a declared range, which
              are boxes too. An array is exact: a float in the program's dtype
    method    "interval": op by op, at the cost of two to four forward passes; "crown": linear relaxations of the
              whole program, tighter but more expensive: a backward pass for each element of a result, and of each
              activation's input
    options   the interpreter that computes the bounds; they hold for what it runs, eager or compiled

    Returns a pytree like the program's result with a Box for each tensor. The box contains the exact real value,
    computed from the numbers that the dtype holds, and the value that any of Opstage's interpreters computes in that
    dtype: the ends are rounded outward. Nothing is known about an element from -inf to inf: it may be nan. Masks and
    integers have boxes too; those whose values the inputs leave open may only be used in comparisons, `select` and
    `cast`. Raises UnsupportedError at an op without bounds, and for products in tf32 or bf16.

    Raises:
        UsageError: an unknown method; a box that is none.
    """
    if method not in METHODS:
        raise UsageError(f"method is one of {', '.join(map(repr, METHODS))}, not {method!r}")
    options = options_of(options)
    require_plain_products(options)
    args = with_arrays(program, args)
    written, program = program, called_with(program, train, args)
    args = tuple(
        [outward(declared_boxes(tree, str(i)), as_dtype(options.dtype), str(i)) for i, tree in enumerate(args)]
    )
    key = ("bounds", Identity(written), train, method)
    return execute(bounds_base(program, method), args, options, program, key)


def bounds_base(program: Callable[..., Any], method: Method) -> Callable[..., Any]:
    """(ops, *args) -> boxes of the program's value."""
    bound = interval_bounds if method == "interval" else linear_bounds

    def base(ops: Any, *trees: Any) -> Any:
        return bound(ops, program, *trees)

    return base


def require_plain_products(options: Options) -> None:
    """Raise UsageError where products round more than their dtype does."""
    if options.matmul_precision != "fp32":
        raise UsageError(
            f"bounds hold for products in full precision: set matmul_precision='fp32', not {options.matmul_precision!r}"
        )
