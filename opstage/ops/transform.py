"""Derivatives inside programs: `opstage.transform.grad(ops, f, x)` and related functions.

Each builds a differentiating interpreter over `ops`, passes it to f as f's first argument, and closes it on return.
Inside f, outer refs are constants. Nested calls give higher derivatives without perturbation confusion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import ProgramError
from .primitive import R
from .protocol import Ops
from .trees import flatten

__all__ = ["bounds", "grad", "jvp", "vjp"]


def vjp(ops: Ops[R], f: Callable[..., Any], *refs: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return `(f(ops', *refs), pullback)`; `pullback(cotangent)` returns a tuple aligned with refs, None for integers.

    Raises:
        ShapeError: a cotangent of another shape.
    """
    return ops.vjp_of(f, *refs)


def jvp(ops: Ops[R], f: Callable[..., Any], refs: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return `(f(ops', *refs), J · tangents)`; a tangent is None where it is zero.

    Raises:
        ShapeError: tangents of other shapes or another number.
    """
    return ops.jvp_of(f, tuple(refs), tuple(tangents))


def grad(ops: Ops[R], f: Callable[..., Any], *refs: Any) -> Any:
    """Return the gradient of a scalar f with respect to its refs: one gradient for one ref, else a tuple.

    Raises:
        ProgramError: f that returns no scalar.
    """
    value, pullback = ops.vjp_of(f, *refs)
    leaves, _ = flatten(value)
    if len(leaves) != 1 or len(leaves[0].shape) != 0:
        raise ProgramError("grad takes a function that returns one scalar; reduce with ops.sum or use vjp")
    gradients = pullback(ops.full(shape=(), value=1.0, dtype=leaves[0].dtype))
    return gradients[0] if len(refs) == 1 else gradients


def bounds(ops: Ops[R], f: Callable[..., Any], *trees: Any) -> Any:
    """Return interval bounds of `f(ops', *trees)`, a pytree of `Box`; arguments contain boxes of refs and refs.

    They are computed by `ops`, so they can be differentiated, compiled and bounded like any other computation.

    Raises:
        ShapeError: a box whose ends differ in type.
        UnsupportedError: an op that has no bounds.
    """
    return ops.bounds_of(f, *trees)
