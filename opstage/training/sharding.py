"""ZeRO (Rajbhandari et al. 2020): which part of an optimizer's state a rank keeps, and how a step updates it.

The elements of a parameter, flattened and zero-padded, are cut into equal parts, one per rank along the axis `data`. A
rank keeps the moments of its part, receives that part of the summed gradient (reduce_scatter), updates it, and the
parts are joined (all_gather). This moves as many bytes as an all_reduce and has the same bits, since the order of a sum
is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..interpreters.interpreter import BaseInterpreter
from ..interpreters.mesh.ranks import ROWS, Ranks
from ..interpreters.mesh.regather import Regathered, Regathering
from ..ops.dims import Dim, prod
from ..ops.types import DType, Shape, TensorType

if TYPE_CHECKING:
    from .optim import Optimizer

DATA = ROWS
"""The mesh axis over which the rows of a batch are divided and, with ZeRO, the optimizer's state."""

LEAST = 1024
"""A parameter of fewer elements is not sharded: its messages would be too small."""


def is_shared(shape: Shape, optimizer: Optimizer) -> bool:
    """Whether the optimizer state of a parameter is sharded: if it is large and the update is elementwise."""
    count = prod(shape)
    return isinstance(count, int) and count >= LEAST and optimizer.mover(shape).elementwise


def is_in_parts(shape: Shape, dtype: DType, zero: int) -> bool:
    """Whether the parameter itself is sharded at this ZeRO level: if it is large and float, trained or not."""
    count = prod(shape)
    return zero == 3 and dtype.kind == "f" and isinstance(count, int) and count >= LEAST


def part_shape(shape: Shape, ranks: Dim) -> tuple[Dim]:
    """Return the shape of a rank's part of a parameter."""
    return ((prod(shape) + ranks - 1) // ranks,)


def part(ops: Any, x: Any) -> Any:
    """Return the rank's own part of a tensor that is equal on all ranks."""
    return ops.shard(_row(ops, x), axis=DATA)


def part_of_sum(ops: Any, x: Any) -> Any:
    """Return the rank's own part of the sum of x over the ranks."""
    return ops.reduce_scatter(_row(ops, x), axis=DATA)


def joined(ops: Any, x: Any, shape: Shape) -> Any:
    """Return a whole tensor of this shape from the ranks' parts."""
    row = ops.all_gather(x, axis=DATA, replicated=True)
    return ops.reshape(ops.slice(row, axis=0, start=0, length=prod(shape)), shape=shape)


def gathered(ops: Any, row: Sequence[Any], whole: Sequence[Shape | None]) -> tuple[Any, Sequence[Any]]:
    """Return an interpreter that gathers the sharded parameters at the start of a row when they are read, and its refs.

    `whole` has the full shapes of the sharded parameters. If there are none, the interpreter is `ops` itself.
    """
    if not any(shape is not None for shape in whole):
        return ops, row
    outer = Regathering(ops)
    refs = [outer.wrap(ops.adopt(x)) for x in row]
    for i, shape in enumerate(whole):
        if shape is not None:
            refs[i] = _gathered(outer, ops.adopt(row[i]), shape)
    return outer, refs


def _gathered(ops: Regathering, x: Any, shape: Shape) -> Regathered:
    return ops.gathered(TensorType(shape, x.dtype), lambda: joined(ops.inner, x, shape))


def beneath(outer: Any, ops: Any, refs: Sequence[Any]) -> list[Any]:
    """Convert refs of `outer`, the interpreter of `gathered`, to refs of `ops`."""
    return list(refs) if outer is ops else [outer.adopt(ref).value() for ref in refs]


def fetched(home: BaseInterpreter[Any], ref: Any, shape: Shape) -> np.ndarray[Any, Any]:
    """Fetch a tensor of this shape to the host, from its value on `home` or from the ranks' parts.

    If several processes host the ranks, all must call this together.
    """
    if tuple(ref.shape) != tuple(shape):
        (ref,) = home.execute_each(lambda ops, x: (joined(ops, x, shape),), (ref,))
    return np.asarray(home.get(ref))


def placed(home: BaseInterpreter[Any], array: Any) -> Any:
    """Return the ranks' parts of a host array as a value of `home`; with several processes, each reads its own."""
    if type(home) is Ranks:
        (own,), row = part_shape(array.shape, home.mesh.size(DATA)), np.asarray(array).reshape(-1)

        def part_at(place: int) -> Any:
            found = row[place * own : (place + 1) * own]
            return np.concatenate([found, np.zeros(own - len(found), found.dtype)]) if len(found) < own else found

        return home.put_each(DATA, part_at)
    return home.execute_each(lambda ops, x: (part(ops, x),), (home.put(array),))[0]


def _row(ops: Any, x: Any) -> Any:
    """Flatten x, padded with zeros to a multiple of the number of ranks."""
    ranks, count = ops.mesh.size(DATA), prod(x.shape)
    (own,) = part_shape(x.shape, ranks)
    row = ops.reshape(x, shape=(count,))
    missing = own * ranks - count
    if isinstance(missing, int) and not missing:
        return row
    return ops.concat([row, ops.full(shape=(missing,), value=0.0, dtype=x.dtype)], axis=0)
