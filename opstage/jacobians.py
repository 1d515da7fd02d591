"""Jacobians, Hessians and per-sample gradients: rows by vjp, columns by hvp.

Each is a loop over runs of one program, one per row of the result: exact, in the memory of one run. With backend
"compiled" that program is compiled once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .api import hvp, value_and_grad, vjp
from .arguments import Program, require_arguments, with_arrays
from .ops.arrays import as_numpy
from .ops.errors import ShapeError, UsageError
from .ops.tracebacks import called_by_users
from .ops.trees import flatten, map_leaves, unflatten
from .options import Options, options_of


@called_by_users
def jacobian(program: Program, *args: Any, wrt: int = 0, options: Options | None = None, train: bool = False) -> Any:
    """∂value/∂args[wrt]: the tree of the value, each leaf a tree like the argument, of shape (*output, *input).

    It takes one backward pass for each element of the value. PyTorch: torch.func.jacrev. Raises UsageError where the
    argument has a leaf that is not a float.

    Raises:
        UsageError: wrt that names no argument, or one of integers.
    """
    args = with_arrays(program, args)
    leaves = _float_leaves(args, wrt)
    value, pullback = vjp(program, *args, options=options, train=train)
    outputs, structure = flatten(value)
    dtype = _dtype(options)
    zeros = [np.zeros_like(output) for output in outputs]
    rows = [[np.zeros((*output.shape, *leaf.shape), dtype) for leaf in leaves] for output in outputs]
    for i, output in enumerate(outputs):
        if output.dtype.kind not in "f":
            raise UsageError(f"output {i} of the program is {output.dtype}, which has no derivative")
        for place, one in _basis(zeros[i]):
            pulled = pullback(unflatten(structure, [*zeros[:i], one, *zeros[i + 1 :]]))[wrt]
            for row, found in zip(rows[i], flatten(pulled)[0]):
                row[place] = found
    inputs = flatten(args[wrt])[1]
    return unflatten(structure, [unflatten(inputs, row) for row in rows])


@called_by_users
def hessian(program: Program, *args: Any, wrt: int = 0, options: Options | None = None, train: bool = False) -> Any:
    """∂²value/∂args[wrt]² of a scalar program: a tree of trees, both like the argument, with leaves (*leaf, *leaf).

    It takes one Hessian-vector product for each element of the argument. PyTorch: torch.func.hessian.

    Raises:
        ShapeError: a program that returns no scalar.
        UsageError: wrt that names no argument, or one of integers.
    """
    args = with_arrays(program, args)
    leaves = _float_leaves(args, wrt)
    structure = flatten(args[wrt])[1]
    zeros = [np.zeros_like(leaf) for leaf in leaves]
    dtype = _dtype(options)
    blocks = [[np.zeros((*a.shape, *b.shape), dtype) for b in leaves] for a in leaves]
    for j, leaf in enumerate(zeros):
        for place, one in _basis(leaf):
            tangents: list[Any] = [None] * len(args)
            tangents[wrt] = unflatten(structure, [*zeros[:j], one, *zeros[j + 1 :]])
            moved = hvp(program, args, tuple(tangents), options=options, train=train)[wrt]
            for row, found in zip(blocks, flatten(moved)[0]):
                at: Any = (..., *place)
                row[j][at] = found
    return unflatten(structure, [unflatten(structure, row) for row in blocks])


@called_by_users
def per_sample_gradients(
    program: Program, params: Any, *batch: Any, options: Options | None = None, train: bool = False
) -> Any:
    """The gradient of `program(ops, params, *batch)` for each sample: a tree like params, of shape (N, *leaf).

    The program gets batches of one sample, with the leading axis kept. PyTorch: torch.func.vmap(torch.func.grad(…)).
    Raises ShapeError where the leaves of the batch do not share their leading size.

    Raises:
        ShapeError: a program that returns no scalar for one row; batches that share no leading size.
    """
    params, *rest = with_arrays(program, (params, *batch))
    batch = tuple(map_leaves(as_numpy, tree) for tree in rest)
    sizes = {leaf.shape[:1] for leaf in flatten(batch)[0]}
    if len(sizes) != 1 or () in sizes:
        raise ShapeError(f"the leaves of a batch share their leading size, but here are {sorted(sizes)}", op="gradient")
    ((count,),) = sizes
    leaves, structure = _float_leaves((params,), 0), flatten(params)[1]
    rows = [np.zeros((count, *leaf.shape), _dtype(options)) for leaf in leaves]
    for i in range(count):
        sample = tuple(map_leaves(lambda leaf, i=i: leaf[i : i + 1], tree) for tree in batch)
        _, found = value_and_grad(program, params, *sample, options=options, train=train)
        for row, gradient in zip(rows, flatten(found)[0]):
            row[i] = gradient
    return unflatten(structure, rows)


def _dtype(options: Options | None) -> Any:
    dtype = options_of(options).dtype
    return object if dtype == "exact" else dtype


def _float_leaves(args: tuple[Any, ...], wrt: int) -> list[Any]:
    require_arguments("jacobian", "jacobian(program, x)", args)
    if not isinstance(wrt, int) or isinstance(wrt, bool) or not 0 <= wrt < len(args):
        raise UsageError(f"wrt is the position of one of {len(args)} arguments, not {wrt!r}")
    leaves = [as_numpy(leaf) for leaf in flatten(args[wrt])[0]]
    for leaf in leaves:
        if leaf.dtype.kind != "f":
            raise UsageError(f"argument {wrt} has a leaf of {leaf.dtype}, which has no derivative; make it a float")
    return leaves


def _basis(zero: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """For each index of an array, the index and an array that is one there and zero elsewhere."""
    for place in np.ndindex(zero.shape):
        one = np.array(zero)
        one[place] = 1.0
        yield place, one
