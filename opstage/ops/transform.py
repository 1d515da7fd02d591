"""Derivatives inside programs: `opstage.transform.grad(ops, f, x)` and related functions.

Each builds a differentiating interpreter over `ops`, passes it to f as f's first argument, and closes it on return.
Inside f, outer refs are constants. Nested calls give higher derivatives without perturbation confusion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import optree

from .array_conversion import as_numpy
from .dims import Dim, prod
from .errors import DtypeError, ProgramError, UsageError
from .primitive import R
from .protocol import Ops
from .trees import flatten, map_leaves, unflatten
from .types import TensorType, is_float

__all__ = ["bounds", "grad", "hessian", "hvp", "jacobian", "jvp", "remat", "value_and_grad", "vjp", "vmap"]
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


def vmap(
    ops: Ops[R],
    f: Callable[..., Any],
    *refs: Any,
    in_axes: Any = 0,
    out_axes: Any = 0,
    chunk: int | None = None,
    draws: str = "each",
) -> Any:
    """Return the results of `f(ops', *examples)` for all examples of a batch, computed together.

    in_axes    the axis of the examples in each argument: an int, None for an argument that all examples share, or a
               tuple with one entry for each argument, which may be a tree that stops above the argument's leaves
    out_axes   the axis of the examples in each result, likewise; None requires a result that all examples share
    chunk      how many examples run together: chunks run one after the other, in the memory of one chunk
    draws      "each": an example draws as it would in a loop over the examples, whatever the chunk; "shared": all
               examples draw the same

    f is a program for one example; errors name the shapes of one example. Derivatives may be taken of f, of the result,
    and of both. A `cond`, `switch` or `while_loop` whose choice differs between examples is exact for each of them: a
    branch that an example does not take has no influence on its results or gradients. As jax.vmap.

    Raises:
        ShapeError: arguments of different numbers of examples, or without that axis; a result for out_axes=None that
            differs between examples.
        UnsupportedError: chunk for a batch of a named size.
        UsageError: other settings; f that is not a function; axes that are not built like the arguments or results.
    """
    return ops.vmap_of(f, *refs, in_axes=in_axes, out_axes=out_axes, chunk=chunk, draws=draws)


def remat(ops: Ops[R], f: Callable[..., Any], *operands: Any) -> Any:
    """Return `f(ops', *operands)`, of which the backward pass keeps the operands alone and runs f again.

    It trades time for memory: values, gradients and random draws are those of f. Leaves of operands that are not refs,
    such as numbers, are passed on unchanged; outer refs that f reads count as operands. As jax.checkpoint.

    Raises:
        ProgramError: f that is not a function, or returns anything but refs.
    """
    return ops.remat(f, *operands)


def jacobian(ops: Ops[R], f: Callable[..., Any], *refs: Any, wrt: int = 0, chunk: int | None = None) -> Any:
    """Return ∂f/∂refs[wrt]: the tree of f's value, each leaf a tree like that ref, of shape (*output, *input).

    The backward passes for all elements of the value run together, or `chunk` at a time. PyTorch: torch.func.jacrev.

    Raises:
        DtypeError: a value, or a ref of `wrt`, that is not a float.
        UnsupportedError: chunk for a value of a named size.
        UsageError: wrt that names no ref.
    """
    of = _function_of(f, refs, wrt)
    before = ops.cursor.mark()
    value = ops.vjp_of(f, *refs)[0]
    ops.cursor.rewind(before)  # the passes below draw what this one has drawn
    outputs, structure = flatten(value)
    _require_floats("jacobian", [*outputs, *flatten(refs[wrt])[0]])

    def row(inner: Ops[Any], number: Any) -> Any:
        return inner.vjp_of(of, refs[wrt])[1](unflatten(structure, _basis_vector(inner, number, outputs)))[0]

    rows = vmap(ops, row, ops.iota(shape=(_num_elements(outputs),)), chunk=chunk, draws="shared")
    return unflatten(structure, _blocks(ops, rows, outputs))


def hessian(ops: Ops[R], f: Callable[..., Any], *refs: Any, wrt: int = 0, chunk: int | None = None) -> Any:
    """Return ∂²f/∂refs[wrt]² of a scalar f: a tree of trees, both like that ref, with leaves (*leaf, *leaf).

    The Hessian-vector products for all elements of that ref, forward over reverse, run together, or `chunk` at a time.
    PyTorch: torch.func.hessian.

    Raises:
        DtypeError: a ref of `wrt` that is not a float.
        ProgramError: f that returns no scalar.
        UnsupportedError: chunk for a ref of a named size.
        UsageError: wrt that names no ref.
    """
    of = _function_of(f, refs, wrt)
    leaves, structure = flatten(refs[wrt])
    _require_floats("hessian", leaves)

    def column(inner: Ops[Any], number: Any) -> Any:
        tangent = unflatten(structure, _basis_vector(inner, number, leaves))
        return jvp(inner, lambda own, tree: grad(own, of, tree), (refs[wrt],), (tangent,))[1]

    columns = vmap(ops, column, ops.iota(shape=(_num_elements(leaves),)), chunk=chunk, draws="shared")
    by_column = [flatten(block)[0] for block in _blocks(ops, columns, leaves)]
    blocks = []
    for i, leaf in enumerate(leaves):
        row = []
        for block, other in zip(by_column, leaves):
            axes = range(len(leaf.shape) + len(other.shape))
            order = (*axes[len(other.shape) :], *axes[: len(other.shape)])
            row.append(ops.permute(block[i], axes=order))
        blocks.append(unflatten(structure, row))
    return unflatten(structure, blocks)


def _function_of(f: Callable[..., Any], refs: tuple[Any, ...], wrt: int) -> Callable[..., Any]:
    """f as a function of one of its refs; the others are constants."""
    if not isinstance(wrt, int) or isinstance(wrt, bool) or not 0 <= wrt < len(refs):
        raise UsageError(f"wrt is the position of one of {len(refs)} refs, not {wrt!r}")
    return lambda ops, tree: f(ops, *refs[:wrt], tree, *refs[wrt + 1 :])


def _require_floats(op: str, refs: Iterable[Any]) -> None:
    for ref in refs:
        if not is_float(ref.dtype):
            raise DtypeError(f"a derivative is of floats, but f has {TensorType(ref.shape, ref.dtype)}", op=op)


def _num_elements(leaves: Sequence[Any]) -> Dim:
    total: Dim = 0
    for leaf in leaves:
        total = total + prod(leaf.shape)
    return total


def _basis_vector(ops: Ops[R], number: R, leaves: Sequence[Any]) -> list[R]:
    """Return tensors like the leaves that are 1 at element `number`, counted through all leaves, and 0 elsewhere."""
    total = _num_elements(leaves)
    hot = ops.equal(ops.iota(shape=(total,)), ops.broadcast_to(number, shape=(total,)))
    found = []
    start: Dim = 0
    for leaf in leaves:
        size = prod(leaf.shape)
        part = ops.slice(hot, axis=0, start=start, length=size) if len(leaves) > 1 else hot
        found.append(ops.reshape(ops.cast(part, dtype=leaf.dtype), shape=leaf.shape))
        start = start + size
    return found


def _blocks(ops: Ops[R], tree: Any, leaves: Sequence[Any]) -> list[Any]:
    """Split a tree whose leaves have a row for each element of `leaves` into trees of shapes (*leaf, *row)."""
    found = []
    start: Dim = 0
    for leaf in leaves:
        size = prod(leaf.shape)

        def block(rows: Any, leaf: Any = leaf, start: Any = start, size: Any = size) -> Any:
            own = ops.slice(rows, axis=0, start=start, length=size) if len(leaves) > 1 else rows
            return ops.reshape(own, shape=(*leaf.shape, *rows.shape[1:]))

        found.append(map_leaves(block, tree))
        start = start + size
    return found


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
