"""`Sharding` is ZeRO (Rajbhandari et al. 2020) as a transformation of a step: which part of the parameters and the
optimizer state a rank stores.

The elements of a parameter, flattened and zero-padded, are cut into equal parts, one per rank along the axis `data`. A
rank keeps the moments of its part, receives that part of the summed gradient (reduce_scatter), updates it, and the
parts are joined (all_gather). This moves as many bytes as an all_reduce and has the same bits, since the order of a sum
is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ..distributed.ranks import ROWS, Ranks
from ..distributed.sharded_parameters import Regathered, Regathering
from ..ops.dims import Dim, prod
from ..ops.host_arrays import as_array
from ..ops.types import DType, Shape, TensorType
from ..transforms.interpreter import BaseInterpreter
from .snapshot import Unfetched

if TYPE_CHECKING:
    from ..optim import Optimizer
    from ..optim.optimizer import Updater
    from .step import Row, TrainingStep

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


@final
@dataclass(frozen=True, eq=False)
class Sharding:
    """Which parts of parameters and optimizer state a rank stores, and the collectives that a step needs for that.

    zero    the level of ZeRO: 0, or from which on the optimizer state is sharded; at 3 the parameters are too
    whole   for each sharded parameter its full shape, None for the others; empty if there are none
    """

    zero: int = 0
    whole: tuple[Shape | None, ...] = ()

    def shards_state(self, ops: Any) -> bool:
        """Whether the optimizer state is sharded over the ranks of `ops`."""
        return bool(self.zero) and several_ranks(ops)

    def on_whole_parameters(
        self, ops: Any, program: Callable[..., Row[Any]], row: Sequence[Any], varying: int = 0
    ) -> Row[Any]:
        """Return the outputs of `program(outer, *row)`, whose sharded parameters are gathered when they are read.

        The first `varying` inputs vary over the ranks already, so that a tape does not sum their gradients.
        """
        if not self.whole and not varying:
            return program(ops, *row)
        outer, refs = self._gathered(ops, row)
        if varying:
            first = [outer.vary(x, axis=DATA) if x.dtype.kind in "fO" else x for x in refs[:varying]]
            refs = (*first, *refs[varying:])
        outputs, structure = program(outer, *refs)
        return outputs if outer is ops else [outer.adopt(ref).value() for ref in outputs], structure

    def _gathered(self, ops: Any, row: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        if not any(shape is not None for shape in self.whole):
            return ops, row
        outer = Regathering(ops)
        refs = [outer.wrap(ops.adopt(x)) for x in row]
        for i, shape in enumerate(self.whole):
            if shape is not None:
                refs[i] = _gathered(outer, ops.adopt(row[i]), shape)
        return outer, refs

    @staticmethod
    def of_own_rows(step: TrainingStep) -> TrainingStep:
        """Return the step whose loss leaves the gradients of each rank's rows unsummed."""
        return replace(step, loss=step.loss.unsummed())  # type: ignore[attr-defined]

    @staticmethod
    def all_reduce(ops: Any, gradients: Sequence[Any]) -> list[Any]:
        """Return the sums over the ranks of gradients of their own rows."""
        return [ops.all_reduce(gradient, axis=DATA) for gradient in gradients]

    def sharded(
        self,
        ops: Any,
        indices: Sequence[int],
        gradients: Sequence[Any],
        optimizers: Sequence[Optimizer],
        updates: Sequence[Updater],
        own_rows: bool,
    ) -> tuple[Sequence[Any], Sequence[Updater]]:
        """Return gradients reduced over the ranks (if they are those of own rows) and updates of a rank's own parts."""
        shards = self.shards_state(ops)
        if own_rows:  # all before the first is read, so that the collectives can overlap
            gradients = [
                part_of_sum(ops, g) if shards and is_shared(g.shape, each) else ops.all_reduce(g, axis=DATA)
                for g, each in zip(gradients, optimizers)
            ]
        whole = [self.whole[i] if self.whole else None for i in indices]
        return gradients, [
            _of_part(update, optimizer, shape, shards=shards, reduced=own_rows)
            for update, optimizer, shape in zip(updates, optimizers, whole)
        ]


REPLICATED = Sharding()
"""All of it on every rank."""


def _of_part(update: Updater, optimizer: Optimizer, whole: Shape | None, *, shards: bool, reduced: bool) -> Updater:
    """Transform an update of whole tensors into one of a rank's part, for a parameter that is whole or (with its shape
    `whole`) sharded. `reduced`: the gradient is that part already."""

    def of_part(
        ops: Any, p: Any, g: Any, slots: tuple[Any, ...], scalars: Mapping[str, Any]
    ) -> tuple[Any, Sequence[Any]]:
        shape = p.shape if whole is None else whole
        if shards and is_shared(shape, optimizer):
            p, g = part(ops, p) if whole is None else p, g if reduced else part(ops, g)
            slots = tuple([slot if _is_part(slot, shape) else part(ops, slot) for slot in slots])
            value, after = update(ops, p, g, slots, scalars)
            return joined(ops, value, shape) if whole is None else value, after
        if whole is None:
            return update(ops, p, g, slots, scalars)
        value, after = update(ops, joined(ops, p, whole), g, slots, scalars)
        return part(ops, value), after

    return of_part


def several_ranks(ops: Any) -> bool:
    """Whether a batch is divided over several ranks, or over a symbolic number of them."""
    size = ops.mesh.size(DATA)
    return not (isinstance(size, int) and size == 1)


def _is_part(slot: Any, shape: Any) -> bool:
    """Whether a slot is already a rank's part; one that was just put here is whole."""
    return len(slot.shape) == 1 and (not isinstance(slot.shape[0], int) or tuple(slot.shape) != tuple(shape))


def _gathered(ops: Regathering, x: Any, shape: Shape) -> Regathered:
    return ops.gathered(TensorType(shape, x.dtype), lambda: joined(ops.inner, x, shape))


def fetched(home: BaseInterpreter[Any], ref: Any, shape: Shape, dtype: DType) -> np.ndarray[Any, Any]:
    """Fetch a tensor of this type to the host, from its value on `home` or from the ranks' parts.

    If several processes host the ranks, all must call this together.
    """
    if tuple(ref.shape) != tuple(shape):
        (ref,) = home.execute_each(lambda ops, x: (joined(ops, x, shape),), (ref,))
    return as_array(np.asarray(home.get(ref)), dtype)


def unfetched(
    home: BaseInterpreter[Any], ref: Any, shape: tuple[int, ...], dtype: DType, stands: Callable[[], bool]
) -> Unfetched:
    """Return a tensor of this shape that is `fetched` when it is read, and can be read while `stands()`.

    One in the memory of a device is searched there for numbers that are not finite.
    """
    joins = tuple(ref.shape) != shape

    def is_finite() -> bool:
        if joins or isinstance(ref, np.ndarray) or not home.mesh.is_alone:
            return False
        (all_,) = home.execute_each(lambda ops, x: (ops.reduce_all(ops.isfinite(x)),), (ref,))
        return bool(home.get(all_))

    return Unfetched(shape, dtype, lambda: fetched(home, ref, shape, dtype), stands, joins=joins, is_finite=is_finite)


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
