"""ZeRO (Rajbhandari et al. 2020) as a transformation of a step: which part of the parameters and of the optimizer state
a rank stores.

The elements of a parameter, flattened and zero-padded, are split into equal shards, one per rank along the axis
`data`. A rank keeps the moments of its shard, receives that shard of the summed gradient (reduce_scatter), updates it,
and all_gather joins the shards. This moves as many bytes as an all_reduce and has the same bits, since the order of a
sum is fixed.

`Sharding` also reduces gradients over the ranks, sharded or not: parameters vary over the ranks when a loss reads them,
so that each rank has the gradient of its own rows, and `reduce_gradients` sums these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from typing_extensions import override

from ..distributed.ranks import ROWS, Ranks
from ..ops.collective import ALL_GATHER, ALL_REDUCE
from ..ops.dims import Dim, prod
from ..ops.dispatch import Quietly
from ..ops.host_arrays import as_array
from ..ops.primitive import Primitive, Static
from ..ops.types import DType, Shape, TensorType
from ..transforms.interpreter import BaseInterpreter, Holding, Interpreter, Typed, Wrapper
from .snapshot import Unfetched

if TYPE_CHECKING:
    from ..optim import Optimizer
    from ..optim.optimizer import Updater
    from .step import Row

DATA = ROWS
"""The mesh axis over which the rows of a batch are divided and, with ZeRO, the optimizer's state."""

LEAST = 1024
"""A parameter of fewer elements is not sharded: its messages would be too small."""


def is_state_sharded(shape: Shape, optimizer: Optimizer) -> bool:
    """Return whether the optimizer state of a parameter is sharded: if it is large and the update is elementwise."""
    count = prod(shape)
    return isinstance(count, int) and count >= LEAST and optimizer.mover(shape).elementwise


def is_parameter_sharded(shape: Shape, dtype: DType, zero: int) -> bool:
    """Return whether the parameter itself is sharded at this ZeRO level: if it is large and float, trained or not."""
    count = prod(shape)
    return zero == 3 and dtype.kind == "f" and isinstance(count, int) and count >= LEAST


def several_ranks(ops: Any) -> bool:
    """Return whether a batch is divided over several ranks, or over a symbolic number of them."""
    size = ops.mesh.size(DATA)
    return not (isinstance(size, int) and size == 1)


# Shards of a tensor ---------------------------------------------------------------------------------------------------


def shard_shape(shape: Shape, ranks: Dim) -> tuple[Dim]:
    """Return the shape of a rank's shard of a parameter."""
    return ((prod(shape) + ranks - 1) // ranks,)


def take_shard(ops: Any, x: Any) -> Any:
    """Return the rank's own shard of a tensor that is equal on all ranks."""
    return ops.shard(_flatten_padded(ops, x), axis=DATA)


def gather_shards(ops: Any, x: Any, shape: Shape) -> Any:
    """Return a whole tensor of this shape from the ranks' shards."""
    row = ops.all_gather(x, axis=DATA, replicated=True)
    return ops.reshape(ops.slice(row, axis=0, start=0, length=prod(shape)), shape=shape)


def _flatten_padded(ops: Any, x: Any) -> Any:
    """Flatten x, padded with zeros to a multiple of the number of ranks."""
    ranks, count = ops.mesh.size(DATA), prod(x.shape)
    (own,) = shard_shape(x.shape, ranks)
    row = ops.reshape(x, shape=(count,))
    missing = own * ranks - count
    if isinstance(missing, int) and not missing:
        return row
    return ops.concat([row, ops.full(shape=(missing,), value=0.0, dtype=x.dtype)], axis=0)


# The step -------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Sharding:
    """Which shards of parameters and optimizer state a rank stores, and the collectives that a step needs for that.

    zero    the level of ZeRO: 0, or from which on the optimizer state is sharded; at 3 the parameters are too
    whole   for each sharded parameter its full shape, None for the others; empty if there are none
    """

    zero: int = 0
    whole: tuple[Shape | None, ...] = ()

    def on_whole_parameters(
        self, ops: Any, program: Callable[..., Row[Any]], row: Sequence[Any], count: int
    ) -> Row[Any]:
        """Return the outputs of `program(outer, *row)`, whose sharded parameters are gathered when they are read.

        The first `count` inputs are the parameters. They vary over the ranks, so that their gradients are those of a
        rank's own rows.
        """
        if not several_ranks(ops):
            return program(ops, *row)
        outer: Any = ops
        if any(self.whole) or len(ops.mesh.axes) > 1:
            outer = LazyGathers(ops)
            whole = (*self.whole, *[None] * (len(row) - len(self.whole)))
            row = [
                outer.wrap(ops.adopt(x)) if shape is None else outer.gather_when_read(ops.adopt(x), shape)
                for x, shape in zip(row, whole)
            ]
        params = [outer.vary(x, axis=DATA) if x.dtype.kind in "fO" else x for x in row[:count]]
        outputs, structure = program(outer, *params, *row[count:])
        return outputs if outer is ops else [outer.adopt(ref).value() for ref in outputs], structure

    def reduce_gradients(self, ops: Any, gradients: Sequence[Any], optimizers: Sequence[Optimizer]) -> Sequence[Any]:
        """Return the sums over the ranks of gradients of their own rows.

        Of a parameter whose state is sharded, it is a rank's shard of the sum. Without `optimizers` all are whole.
        """
        if not several_ranks(ops):
            return gradients
        shards = [bool(self.zero) and is_state_sharded(g.shape, each) for g, each in zip(gradients, optimizers)]
        return [
            ops.reduce_scatter(_flatten_padded(ops, g), axis=DATA) if is_sharded else ops.all_reduce(g, axis=DATA)
            for g, is_sharded in zip(gradients, shards or [False] * len(gradients), strict=True)
        ]

    def shard_updates(
        self,
        ops: Any,
        indices: Sequence[int],
        optimizers: Sequence[Optimizer],
        updates: Sequence[Updater],
        reduced: bool,
    ) -> Sequence[Updater]:
        """Return updates of a rank's own shards. `reduced`: gradients are such shards already, where these exist."""
        shards = bool(self.zero) and several_ranks(ops)
        whole = [self.whole[i] if self.whole else None for i in indices]
        return [
            _shard_update(update, optimizer, shape, shards=shards, reduced=reduced)
            for update, optimizer, shape in zip(updates, optimizers, whole)
        ]


REPLICATED = Sharding()
"""All of it on every rank."""


def _shard_update(
    update: Updater, optimizer: Optimizer, whole: Shape | None, *, shards: bool, reduced: bool
) -> Updater:
    """Transform an update of whole tensors into one of a rank's shard, for a parameter that is whole or (with its shape
    `whole`) sharded. `reduced`: the gradient is that shard already."""

    def update_shard(
        ops: Any, p: Any, g: Any, slots: tuple[Any, ...], scalars: Mapping[str, Any]
    ) -> tuple[Any, Sequence[Any]]:
        shape = p.shape if whole is None else whole
        if shards and is_state_sharded(shape, optimizer):
            p, g = take_shard(ops, p) if whole is None else p, g if reduced else take_shard(ops, g)
            slots = tuple([slot if _is_shard(slot, shape) else take_shard(ops, slot) for slot in slots])
            value, after = update(ops, p, g, slots, scalars)
            return gather_shards(ops, value, shape) if whole is None else value, after
        if whole is None:
            return update(ops, p, g, slots, scalars)
        value, after = update(ops, gather_shards(ops, p, whole), g, slots, scalars)
        return take_shard(ops, value), after

    return update_shard


def _is_shard(slot: Any, shape: Any) -> bool:
    """Return whether a slot is already a rank's shard; one that was just put here is whole."""
    return len(slot.shape) == 1 and (not isinstance(slot.shape[0], int) or tuple(slot.shape) != tuple(shape))


# Gathers that wait until their result is read -------------------------------------------------------------------------


@final
class LazyRef(Typed):
    """A ref to a value of the inner interpreter, or to one that is computed when it is read.

    make     computes the value on every read; for a sharded parameter and its views
    gather   the shard and static parameters of the all_gather that computes the value on the first read
    """

    __slots__ = ("type", "ops", "_value", "make", "gather")

    def __init__(
        self,
        ops: LazyGathers,
        type_: TensorType,
        value: Any = None,
        make: Callable[[], Any] | None = None,
        gather: tuple[Any, Static] | None = None,
    ):
        self.type = type_
        self.ops = ops
        self._value = value
        self.make = make
        self.gather = gather

    def value(self) -> Any:
        """Return the value, which should not be kept longer than needed."""
        if self.make is not None:
            return self.ops.compute_forward(self.make)
        if self._value is None and self.gather is not None:
            shard, static = self.gather
            with Quietly(self.ops.cursor):
                (self._value,) = self.ops.inner.bind(ALL_GATHER, (shard,), static)
        return self._value


@final
class LazyGathers(Wrapper[LazyRef, Any]):
    """Gathers sharded tensors when an op reads them.

    It sits between a tape and the inner interpreter. A sharded parameter is gathered on every read: the tape keeps its
    ref for the backward pass, and rules that read it there gather it again, so that only the parameters that one op
    reads are whole at a time (ZeRO 3; reshard_after_forward of PyTorch's FSDP2). Views of such parameters, such as
    transposes, are recomputed too.

    A gradient that is gathered over another axis than `data`, since the program used a shard of its parameter, is
    gathered once. A sum over `data` comes before the gather, which commutes with it, and sends the bytes of a shard.
    """

    __slots__ = ()
    ref_type = LazyRef

    def __init__(self, inner: Interpreter[Any]):
        super().__init__(inner, differentiates=False)

    @property
    @override
    def fuses(self) -> bool:
        return self.inner.fuses

    @override
    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        return self.inner.has_fused(primitive, types)

    @override
    def before_decompose(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> None:
        own = [_innermost(ref) for ref in refs]  # of this interpreter, or of the body of a loop that is being traced
        if any(type(ref) is LazyRef and ref.make is not None for ref in own):  # types suffice: nothing is gathered
            self.inner.infer(primitive, tuple([TensorType(ref.shape, ref.dtype) for ref in own]), static)
        else:
            values = [ref.value() if type(ref) is LazyRef else ref for ref in own]
            self.inner.before_decompose(primitive, tuple(values), static)

    @override
    def wrap(self, value: Any, /) -> LazyRef:
        return LazyRef(self, TensorType(value.shape, value.dtype), value)

    def gather_when_read(self, shard: Any, shape: Shape) -> LazyRef:
        """Return the whole tensor of this shape, gathered on every read."""
        return LazyRef(self, TensorType(shape, shard.dtype), make=lambda: gather_shards(self.inner, shard, shape))

    def _gather_once(self, shard: Any, static: Static) -> LazyRef:
        (type_,) = self.inner.infer(ALL_GATHER, (TensorType(shard.shape, shard.dtype),), static)
        return LazyRef(self, type_, gather=(shard, static))

    def compute_forward(self, make: Callable[[], Any]) -> Any:
        """Return the value of `make`, whose ops count as forward ops wherever they run."""
        cursor = self.cursor
        backward, cursor.backward = cursor.backward, False
        try:
            with Quietly(cursor):
                return make()
        finally:
            cursor.backward = backward

    @override
    def bind(self, primitive: Primitive, refs: tuple[LazyRef, ...], static: Static, /) -> tuple[LazyRef, ...]:
        inner = self.inner
        refs = tuple([self.adopt(ref) for ref in refs])
        if primitive.view and len(refs) == 1 and refs[0].make is not None:
            (x,) = refs
            types = inner.infer(primitive, (x.type,), static)
            if len(types) == 1:
                return (LazyRef(self, types[0], make=lambda: inner.bind(primitive, (x.value(),), static)[0]),)
        if primitive is ALL_GATHER and self.cursor.backward and static["replicated"]:
            return (self._gather_once(refs[0].value(), static),)
        if primitive is ALL_REDUCE and refs[0].gather is not None and refs[0].gather[1]["axis"] != static["axis"]:
            shard, gather = refs[0].gather
            return (self._gather_once(inner.bind(primitive, (shard,), static)[0], gather),)
        outs = inner.bind(primitive, tuple([ref.value() for ref in refs]), static)
        return tuple([self.wrap(out) for out in outs])


def _innermost(ref: Any) -> Any:
    """Return the innermost ref within refs of outer interpreters."""
    while isinstance(ref, Holding):
        ref = ref.value
    return ref


# Values on the host ---------------------------------------------------------------------------------------------------


def fetch_whole(home: BaseInterpreter[Any], ref: Any, shape: Shape, dtype: DType) -> np.ndarray[Any, Any]:
    """Fetch a tensor of this type to the host, from its value on `home` or from the ranks' shards.

    If several processes host the ranks, all must call this together.
    """
    if tuple(ref.shape) != tuple(shape):
        (ref,) = home.execute_each(lambda ops, x: (gather_shards(ops, x, shape),), (ref,))
    return as_array(np.asarray(home.get(ref)), dtype)


def fetch_lazily(
    home: BaseInterpreter[Any], ref: Any, shape: tuple[int, ...], dtype: DType, stands: Callable[[], bool]
) -> Unfetched:
    """Return a tensor of this shape that `fetch_whole` fetches when it is read, and can be read while `stands()`.

    One in the memory of a device is searched there for non-finite numbers.
    """
    joins = tuple(ref.shape) != shape

    def is_finite() -> bool:
        if joins or isinstance(ref, np.ndarray) or not home.mesh.is_alone:
            return False
        (all_,) = home.execute_each(lambda ops, x: (ops.reduce_all(ops.isfinite(x)),), (ref,))
        return bool(home.get(all_))

    return Unfetched(
        shape, dtype, lambda: fetch_whole(home, ref, shape, dtype), stands, joins=joins, is_finite=is_finite
    )


def put_shards(home: BaseInterpreter[Any], array: Any) -> Any:
    """Return the ranks' shards of a host array as a value of `home`; with several processes, each reads its own."""
    if type(home) is Ranks:
        (own,), row = shard_shape(array.shape, home.mesh.size(DATA)), np.asarray(array).reshape(-1)

        def take_place(place: int) -> Any:
            found = row[place * own : (place + 1) * own]
            return np.concatenate([found, np.zeros(own - len(found), found.dtype)]) if len(found) < own else found

        return home.put_each(DATA, take_place)
    return home.execute_each(lambda ops, x: (take_shard(ops, x),), (home.put(array),))[0]
