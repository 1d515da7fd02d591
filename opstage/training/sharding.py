"""ZeRO (Rajbhandari et al. 2020): which parts of an optimizer's state a rank keeps, and how a step moves them.

The elements of a parameter, as a row filled up with zeros, are cut into as many equal parts as there are ranks along
the axis `data`. A rank keeps the moments of its own part, is given that part of the summed gradient (reduce_scatter),
moves it, and the parts are joined (all_gather): the bytes of an all_reduce, and its bits, for a sum has one order.
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
"""The axis of a mesh whose ranks share out the rows of a batch, and with ZeRO what an optimizer keeps."""

LEAST = 1024
"""A parameter of fewer elements stays whole: it would be a message of few bytes."""


def is_shared(shape: Shape, optimizer: Optimizer) -> bool:
    """Whether ranks share out the state that an optimizer keeps of a parameter: where it moves each element alone."""
    count = prod(shape)
    return isinstance(count, int) and count >= LEAST and optimizer.mover(shape).elementwise


def is_in_parts(shape: Shape, dtype: DType, zero: int) -> bool:
    """Whether at this level ranks keep parts of a parameter too: of a large one, of floats, trained or not."""
    count = prod(shape)
    return zero == 3 and dtype.kind == "f" and isinstance(count, int) and count >= LEAST


def part_shape(shape: Shape, ranks: Dim) -> tuple[Dim]:
    """The shape of a rank's part of a parameter."""
    return ((prod(shape) + ranks - 1) // ranks,)


def part(ops: Any, x: Any) -> Any:
    """The rank's own part of what all ranks have alike."""
    return ops.shard(_row(ops, x), axis=DATA)


def part_of_sum(ops: Any, x: Any) -> Any:
    """The rank's own part of the sum of the ranks' x."""
    return ops.reduce_scatter(_row(ops, x), axis=DATA)


def joined(ops: Any, x: Any, shape: Shape) -> Any:
    """A whole tensor of this shape, from the ranks' parts of it."""
    row = ops.all_gather(x, axis=DATA, replicated=True)
    return ops.reshape(ops.slice(row, axis=0, start=0, length=prod(shape)), shape=shape)


def gathered(ops: Any, row: Sequence[Any], whole: Sequence[Shape | None]) -> tuple[Any, Sequence[Any]]:
    """An interpreter on which the parameters at the beginning of a row are whole where they are read, and its refs.

    `whole` has the shapes of those of which ranks keep parts. Without any it is `ops` itself.
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
    """Refs of `outer`, which `gathered` gave, as refs of `ops`."""
    return list(refs) if outer is ops else [outer.adopt(ref).value() for ref in refs]


def fetched(home: BaseInterpreter[Any], ref: Any, shape: Shape) -> np.ndarray[Any, Any]:
    """A tensor of this shape on the host, of its value on `home` or of the ranks' parts of it.

    Where several processes host the ranks all of them ask for it together.
    """
    if tuple(ref.shape) != tuple(shape):
        (ref,) = home.execute_each(lambda ops, x: (joined(ops, x, shape),), (ref,))
    return np.asarray(home.get(ref))


def placed(home: BaseInterpreter[Any], array: Any) -> Any:
    """The ranks' parts of an array of the host, a value of `home`; of several processes each reads its own."""
    if type(home) is Ranks:
        (own,), row = part_shape(array.shape, home.mesh.size(DATA)), np.asarray(array).reshape(-1)

        def part_at(place: int) -> Any:
            found = row[place * own : (place + 1) * own]
            return np.concatenate([found, np.zeros(own - len(found), found.dtype)]) if len(found) < own else found

        return home.put_each(DATA, part_at)
    return home.execute_each(lambda ops, x: (part(ops, x),), (home.put(array),))[0]


def _row(ops: Any, x: Any) -> Any:
    """All elements in a row, and zeros behind them to a multiple of the ranks."""
    ranks, count = ops.mesh.size(DATA), prod(x.shape)
    (own,) = part_shape(x.shape, ranks)
    row = ops.reshape(x, shape=(count,))
    missing = own * ranks - count
    if isinstance(missing, int) and not missing:
        return row
    return ops.concat([row, ops.full(shape=(missing,), value=0.0, dtype=x.dtype)], axis=0)
