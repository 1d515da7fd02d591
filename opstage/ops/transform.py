"""Derivatives inside programs: `opstage.transform.grad(ops, f, x)` and related functions.

Each builds a differentiating interpreter over `ops`, passes it to f as f's first argument, and closes it on return.
Inside f, outer refs are constants. Nested calls give higher derivatives without perturbation confusion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import optree

from .array_conversion import as_numpy
from .errors import DtypeError, ProgramError, ShapeError, UsageError
from .primitive import R
from .protocol import Ops
from .trees import flatten, unflatten
from .types import TensorType, is_float

__all__ = ["bounds", "grad", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vjp"]
__dir__ = __all__.copy


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


def value_and_grad(ops: Ops[R], f: Callable[..., Any], *refs: Any) -> tuple[Any, Any]:
    """Return the value of a scalar f and its gradient with respect to its refs: one for one ref, else a tuple.

    Raises:
        ProgramError: f that returns no scalar.
    """
    value, pullback = ops.vjp_of(f, *refs)
    leaves, _ = flatten(value)
    if len(leaves) != 1 or len(leaves[0].shape) != 0:
        raise ProgramError("grad takes a function that returns one scalar; reduce with ops.sum or use vjp")
    gradients = pullback(ops.full(shape=(), value=1.0, dtype=leaves[0].dtype))
    return value, gradients[0] if len(refs) == 1 else gradients


def grad(ops: Ops[R], f: Callable[..., Any], *refs: Any) -> Any:
    """Return the gradient of a scalar f with respect to its refs: one gradient for one ref, else a tuple.

    Raises:
        ProgramError: f that returns no scalar.
    """
    return value_and_grad(ops, f, *refs)[1]


def hvp(ops: Ops[R], f: Callable[..., Any], refs: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """Return H · tangents for the Hessian H of a scalar f, forward over reverse: one for one ref, else a tuple.

    It costs about two gradients. A tangent is None where it is zero. PyTorch: torch.func.jvp of torch.func.grad.

    Raises:
        ProgramError: f that returns no scalar.
        ShapeError: tangents of other shapes or another number.
    """
    return jvp(ops, lambda inner, *own: grad(inner, f, *own), refs, tangents)[1]


def jacobian(ops: Ops[R], f: Callable[..., Any], *refs: Any, wrt: int = 0) -> Any:
    """Return ∂f/∂refs[wrt]: the tree of f's value, each leaf a tree like that ref, of shape (*output, *input).

    The program gets one backward pass for each element of the value, whose sizes must be numbers. PyTorch:
    torch.func.jacrev.

    Raises:
        DtypeError: a value, or a ref of `wrt`, that is not a float.
        ShapeError: a value with a named size.
        UsageError: wrt that names no ref.
    """
    if not isinstance(wrt, int) or isinstance(wrt, bool) or not 0 <= wrt < len(refs):
        raise UsageError(f"wrt is the position of one of {len(refs)} refs, not {wrt!r}")
    value, pullback = ops.vjp_of(f, *refs)
    (outputs, outer), (inputs, inner) = flatten(value), flatten(refs[wrt])
    for ref in (*outputs, *inputs):
        if not is_float(ref.dtype):
            raise DtypeError(f"a Jacobian is of floats, but f has {TensorType(ref.shape, ref.dtype)}", op="jacobian")
    if any(not isinstance(size, int) for ref in outputs for size in ref.shape):
        raise ShapeError("the value has a named size; a Jacobian has a pass for each of its elements", op="jacobian")
    zeros = [ops.full(shape=ref.shape, value=0.0, dtype=ref.dtype) for ref in outputs]
    found = []
    for i, out in enumerate(outputs):
        rows = []
        for place in np.ndindex(*out.shape):
            one = np.zeros(out.shape)
            one[place] = 1.0
            cotangents = [*zeros[:i], ops.const(one, dtype=out.dtype), *zeros[i + 1 :]]
            rows.append(flatten(pullback(unflatten(outer, cotangents))[wrt])[0])
        columns = [
            ops.reshape(ops.stack([row[k] for row in rows], axis=0), shape=(*out.shape, *leaf.shape))
            if rows
            else ops.full(shape=(*out.shape, *leaf.shape), value=0.0, dtype=leaf.dtype)
            for k, leaf in enumerate(inputs)
        ]
        found.append(unflatten(inner, columns))
    return unflatten(outer, found)


def hessian(ops: Ops[R], f: Callable[..., Any], *refs: Any, wrt: int = 0) -> Any:
    """Return ∂²f/∂refs[wrt]² of a scalar f: a tree of trees, both like that ref, with leaves (*leaf, *leaf).

    It is the Jacobian of the gradient, so the sizes of that ref must be numbers. PyTorch: torch.func.hessian.

    Raises:
        ProgramError: f that returns no scalar.
        DtypeError: a ref of `wrt` that is not a float.
        ShapeError: a ref of `wrt` with a named size.
        UsageError: wrt that names no ref.
    """

    def gradient(inner: Ops[Any], *own: Any) -> Any:
        found = grad(inner, f, *own)
        return found if len(own) == 1 else found[wrt]

    return jacobian(ops, gradient, *refs, wrt=wrt)


def bounds(ops: Ops[R], f: Callable[..., Any], *trees: Any) -> Any:
    """Return interval bounds of `f(ops', *trees)`, a pytree of `Box`; arguments contain boxes of refs and refs.

    They are computed by `ops`, so they can be differentiated, compiled and bounded like any other computation.

    Raises:
        ShapeError: a box whose ends differ in type.
        UnsupportedError: an op that has no bounds.
    """
    return ops.bounds_of(f, *trees)


# The set of tensors between a lower and an upper bound, as an argument or result of bounds ----------------------------


@final
@dataclass(frozen=True)
class Box:
    """The tensors x with lower <= x <= upper, elementwise; both ends have the same shape.

    An element from -inf to inf is unknown; it may even be nan.

    Raises:
        UsageError: ends of other shapes, or lower above upper, where it is used.
    """

    lower: Any
    upper: Any

    @staticmethod
    def around(x: Any, radius: Any, *, least: float = -np.inf, greatest: float = np.inf) -> Box:
        """Return all tensors within `radius` of x, elementwise, clipped to `least` and `greatest`."""
        x = as_numpy(x)
        if x.dtype.kind not in "fiub":
            raise UsageError(f"a box is around a tensor of numbers, not {x.dtype} values")
        return Box(np.maximum(x - radius, least).astype(x.dtype), np.minimum(x + radius, greatest).astype(x.dtype))


flatten(Box(0.0, 0.0))  # registers the class as a node of trees


def is_box(tree: Any) -> bool:
    """Return whether a tree is a box."""
    return type(tree) is Box


def map_boxes(function: Any, tree: Any) -> Any:
    """Map a function over the leaves of a tree, treating boxes as leaves."""
    return optree.tree_map(function, tree, is_leaf=is_box, namespace="opstage")
