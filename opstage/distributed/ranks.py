"""`Ranks`: a base interpreter that hosts all ranks of a mesh in lockstep, on whatever base interpreter computes.

A ref is the ranks' values. An op is bound once for each rank, and once in all where the ranks have the same operands;
a collective is sums, joins and parts of those values. So a mesh of any size runs in one process, which is how programs
for it are tested, and with the bits that any other spread of its ranks over processes has: where several processes host
the mesh, each does this with its own ranks, and `Crossing` with what others have.

Outside of programs, a process that compiles for one rank alone holds that rank's values as they are: a step then makes
no refs, and costs what it does without a mesh. Only rows of which other processes have the rest are a ref there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..data.loader import OwnRows
from ..init.schemes import Elementary
from ..ops.collective import AXIS_INDEX, SHARD, VARY
from ..ops.dispatch import Quietly
from ..ops.errors import LocatedError, MeshError
from ..ops.mesh import Mesh, parse_mesh
from ..ops.primitive import Kind, Primitive, Static
from ..ops.readable_amounts import parse_bytes
from ..ops.trees import flatten, no_ref, unflatten
from ..ops.types import DType, TensorType
from ..options import Options
from ..transforms.cond import SWITCH, run_switch
from ..transforms.control_flow import communicates
from ..transforms.interpreter import BaseInterpreter, Typed
from ..transforms.remat import REMAT
from ..transforms.scan import SCAN, run_loop
from .buckets import BUCKETED, Bucket
from .collectives import Crossing, take_part, within
from .compiled_collectives import Prepared, apart
from .processes import Hosting, require_hosted, require_mpi_tasks, world
from .transport import ONE_PROCESS, Transport

# The values of the ranks of a process ---------------------------------------------------------------------------------

Values = tuple[Any, ...]


class Parts(NamedTuple):
    """Each rank's own rows of a tensor, cut along its first axis over an axis of the mesh."""

    axis: str
    values: Values


def in_parts(type_: TensorType, axis: str) -> MeshError:
    """Return the error of a program that reads all rows of a tensor of which each process has those of its
    ranks alone."""
    return MeshError(
        f"of a batch of {type_.shape[0]} rows each process has those of its ranks alone, and a program that shares out "
        f"no rows over mesh axis {axis!r} reads all of them; give it whole batches",
        op="shard",
    )


@final
class RankValues(Typed):
    """The ranks' values of one tensor, rank by rank; one and the same object where it is replicated.

    parts   what stands in their place where it is replicated, but each process has the rows of its ranks alone: those
            of each rank along the axis. Then `shard` over that axis is all that can be done with it
    """

    __slots__ = ("type", "ops", "parts", "_values", "_pending")

    def __init__(
        self,
        ops: BaseInterpreter[RankValues],
        values: Values | None,
        type_: TensorType | None = None,
        *,
        parts: Parts | None = None,
        pending: tuple[Bucket, int] | None = None,
    ):
        """Create from the ranks' values. Without these, each rank here has its own rows, `parts`; or it is a sum of a
        bucket, and its number there, which is waited for when it is read."""
        if type_ is None:
            assert values is not None
            type_ = TensorType(tuple(values[0].shape), values[0].dtype)
        self.type = type_
        self.ops = ops
        self.parts = parts
        self._values = values
        self._pending = pending

    @property
    def local_values(self) -> Values:
        """Return the value of each rank that is here, or its own rows."""
        return self.values if self.parts is None else self.parts.values

    @property
    def values(self) -> Values:
        """Return the value of each rank that is here."""
        found = self._values
        if self.parts is not None:
            raise in_parts(self.type, self.parts.axis)
        if found is None:
            assert self._pending is not None
            bucket, number = self._pending
            with Quietly(self.ops.cursor):
                found = self._values = bucket.result(number)
        return found

    @property
    def axis(self) -> str | None:
        """Return the axis along which each rank has its own rows; None if each has a value."""
        return None if self.parts is None else self.parts.axis


ROWS = "data"
"""The axis of a mesh over which the rows of a batch are shared out."""


@final
class Ranks(BaseInterpreter[RankValues]):
    """The ranks of a mesh that this process hosts, each on `inner`; all of them where `transport` joins no other one.

    lone    whether programs are compiled, and for one rank: the values outside of them are then its own
    """

    __slots__ = (
        "inner",
        "transport",
        "hosted",
        "bucket",
        "_mesh",
        "_hosting",
        "_indices",
        "_crossing",
        "_crosses",
        "_filling",
        "_programs",
        "lone",
        "exchanges",
        "_types",
    )

    def __init__(self, inner: BaseInterpreter[Any], mesh: Mesh, transport: Transport = ONE_PROCESS, bucket: int = 0):
        """Sum gradients over processes in buckets of `bucket` bytes; 0: one by one, each awaited."""
        super().__init__(inner.dtype, inner.seed, inner.cursor)
        self.inner = inner
        self.transport = transport
        self._hosting = hosting = Hosting(mesh, transport)
        self.hosted = hosting.ranks
        self._crosses: dict[str, bool] = {}
        self._crossing = Crossing(inner, transport, len(self.hosted))
        compiles = getattr(inner, "on_ranks", None)
        self._programs: Any = None if compiles is None else compiles(hosting, bucket)
        self.lone = self._programs is not None and len(self.hosted) == 1
        self._mesh = mesh
        self.bucket = bucket
        self._filling: dict[tuple[Primitive, str, DType], Bucket] = {}
        self._indices: dict[str, RankValues] = {}
        self.exchanges = Prepared(hosting)
        self._types: Sequence[TensorType] = ()

    @property
    @override
    def mesh(self) -> Mesh:
        return self._mesh

    # The host's side: what is put is replicated, what is got is the first rank's -------------------------------------

    @property
    @override
    def executes(self) -> bool:
        return self.inner.executes

    @property
    @override
    def computes(self) -> bool:
        return self.inner.computes

    @override
    def put(self, value: Any, /) -> Any:
        if type(value) is OwnRows:
            return self._put_rows(value)
        made = self.inner.put(value)
        return made if self.lone else self._same(made)

    def put_each(self, axis: str, array: Callable[[int], Any]) -> Any:
        """Return a tensor that varies over an axis: of each rank here the array that its place along the axis has."""
        values = self._put_at_places(axis, array)
        return values[0] if self.lone else self.each(values)

    def _put_at_places(self, axis: str, array: Callable[[int], Any]) -> Values:
        places = [self._mesh.coordinate(rank, axis) for rank in self.hosted]
        made = {place: self.inner.put(array(place)) for place in dict.fromkeys(places)}
        return tuple([made[place] for place in places])

    def own_rows(self, count: int) -> npt.NDArray[np.int64] | None:
        """Return which rows of a batch the ranks of this process take; None if it takes all, or must have all."""
        size = self._mesh.size(ROWS)
        if self.transport.processes == 1 or size == 1 or count % size:
            return None
        share = count // size
        places = sorted({self._mesh.coordinate(rank, ROWS) for rank in self.hosted})
        return np.concatenate([np.arange(place * share, (place + 1) * share) for place in places])

    def _put_rows(self, value: OwnRows) -> RankValues:
        share = len(value) // self._mesh.size(ROWS)
        own = self._put_at_places(ROWS, lambda place: value.part(place * share, (place + 1) * share))
        return RankValues(self, None, TensorType(value.shape, own[0].dtype), parts=Parts(ROWS, own))

    @override
    def get(self, ref: Any, /) -> Any:
        return self.inner.get(ref.values[0] if type(ref) is RankValues else ref)

    @override
    def stored_dtype(self, dtype: DType, /) -> DType:
        return self.inner.stored_dtype(dtype)

    @override
    def fill(self, initialiser: Elementary, shape: tuple[int, ...], dtype: DType, /) -> Any:
        made = self.inner.fill(initialiser, shape, dtype)
        return made if self.lone else self._same(made)

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> RankValues:
        return self._same(self.inner.const(value, dtype=dtype))

    @override
    def adopt(self, ref: Any, /) -> RankValues:
        if type(ref) is RankValues:
            return ref
        if self.lone:
            return self._same(self.inner.adopt(ref))
        raise no_ref(ref, "make one with ops.const(…), or pass it to the program")

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return primitive.kind is Kind.COLLECTIVE or self.inner.has_kernel(primitive)

    @override
    def raise_pending(self) -> None:
        self.inner.raise_pending()

    @override
    def empty_cache(self) -> None:
        self.inner.empty_cache()

    @override
    def execute(self, program: Callable[..., Values], refs: Values, step: int = 0) -> Values:
        """Run a program; an interpreter that compiles records it for one rank, and compiles it for those here."""
        if self._programs is None:
            return self.execute_each(program, refs, step)
        try:
            results: Values = self._programs.execute(program, refs, step)
        except BaseException as error:
            self.transport.leave_run(error)
            raise
        return results if self.lone else tuple([RankValues(self, values) for values in results])

    @override
    def execute_each(self, program: Callable[..., Values], refs: Values, step: int = 0) -> Values:
        def beneath(inner: BaseInterpreter[Any]) -> Values:
            self.cursor = inner.cursor
            self._step = None
            self._indices.clear()
            given = [self.adopt(ref) for ref in refs]
            self.begin([ref.type for ref in given])
            outs = program(self, *given)
            leaves, structure = flatten(outs)
            values = [out.values for out in leaves]  # what is under way ends with the program
            return unflatten(structure, [own for (own,) in values]) if self.lone else outs

        try:
            return self.inner.execute_each(beneath, (), step)
        except BaseException as error:
            self.transport.leave_run(error)
            raise

    def at(self, device: Any) -> Ranks:
        """Return the same ranks in the same program, on another device of the underlying interpreter."""
        inner: Any = self.inner
        made = Ranks(inner.at(device), self._mesh, self.transport, self.bucket)
        made.begin(self._types)
        return made

    def connect(self) -> None:
        """Join the GPUs of all processes, if they have some; all call it. Raises UsageError where they cannot be."""
        join, device = getattr(self.transport, "connect", None), getattr(self.inner, "device", None)
        if join is not None and device is not None:
            join(device)

    def begin(self, types: Sequence[TensorType]) -> None:
        """Start a program of inputs of these types, on all processes."""
        self._types = types
        self._filling.clear()
        self._crossing.begin(types)
        self.exchanges.begin(self._crossing.program)

    @override
    def step(self) -> RankValues:
        if self._step is None:
            self._step = self._same(self.inner.step())
        return self._step

    def each(self, values: Iterable[Any]) -> RankValues:
        """Return a tensor of which each rank has its own value."""
        return RankValues(self, tuple(values))

    def _same(self, value: Any) -> RankValues:
        return RankValues(self, (value,) * len(self.hosted))

    # The seam ---------------------------------------------------------------------------------------------------------

    @override
    def bind(self, primitive: Primitive, refs: tuple[RankValues, ...], static: Static, /) -> tuple[RankValues, ...]:
        refs = tuple([ref if type(ref) is RankValues else self.adopt(ref) for ref in refs])
        if primitive.kind is Kind.COLLECTIVE:
            return (self.collective(primitive, refs, static),)
        if communicates(static):
            return self._together(primitive, refs, static)
        every = [ref.values for ref in refs]
        done: dict[tuple[int, ...], Values] = {}
        outs: list[Values] = []
        for rank in range(len(self.hosted)):
            operands = tuple([values[rank] for values in every])
            key = tuple(map(id, operands))
            out = done.get(key)
            if out is None:
                out = done[key] = self.inner.bind(primitive, operands, static)
            outs.append(out)
        return tuple([RankValues(self, values) for values in zip(*outs)])

    def _together(self, primitive: Primitive, refs: tuple[RankValues, ...], static: Static) -> tuple[RankValues, ...]:
        """Bind a loop, a choice or a user's op whose bodies communicate: all ranks run it in lockstep."""
        if primitive.declared or primitive is REMAT:
            return self.decompose(primitive, refs, static)
        if primitive is SCAN:
            return run_loop(self, *refs, **static)
        if primitive is SWITCH:
            index = refs[0]
            if len({int(self.inner.get(value)) for value in index.values}) == 1:
                return run_switch(self, *refs, **static)
        raise apart(primitive, self.cursor.region.name)

    def collective(self, primitive: Primitive, refs: tuple[RankValues, ...], static: Static) -> RankValues:
        """Return the result of a collective on each rank that is here."""
        axis: str = static["axis"]
        self.infer(primitive, tuple([ref.type for ref in refs]), static)
        if primitive is AXIS_INDEX:
            return self._index(axis)
        (x,) = refs
        if primitive is VARY:
            return x
        if x.parts is not None and primitive is SHARD and axis == x.parts.axis and static["dim"] in (0, -len(x.shape)):
            return self.each(x.parts.values)
        if primitive in BUCKETED and self.bucket and self._crossed(axis):
            return self._coming(primitive, x, static)
        result: dict[int, Any] = {}
        values = dict(zip(self.hosted, x.values, strict=True))
        with Quietly(self.cursor):  # the ops by which it is computed are none of the program's
            for group in sorted(
                {self._mesh.group(rank, axis) for rank in self.hosted}
            ):  # in one order on all processes
                own = {index: values[rank] for index, rank in enumerate(group) if rank in values}
                if primitive is SHARD:
                    outs = {i: take_part(self.inner, each, static["dim"], i, len(group)) for i, each in own.items()}
                elif len(own) == len(group):
                    outs = dict(enumerate(within(self.inner, primitive, list(own.values()), static)))
                else:
                    outs = self._crossing.within(primitive, group, own, static)
                result.update({group[index]: out for index, out in outs.items()})
        return self.each([result[rank] for rank in self.hosted])

    def _crossed(self, axis: str) -> bool:
        """Return whether groups along an axis span several processes."""
        found = self._crosses.get(axis)
        if found is None:
            found = self._crosses[axis] = self._hosting.crosses(axis)
        return found

    def _coming(self, primitive: Primitive, x: RankValues, static: Static) -> RankValues:
        """Add a collective to a bucket with others, and start the bucket once it is full. What fills one alone is
        not copied: it goes as it is, past the others."""
        key = primitive, static["axis"], x.dtype
        bucket = self._filling.get(key)
        if int(x.type.nbytes) >= self.bucket:
            bucket = self.empty_bucket(primitive, static)
        elif bucket is None or bucket.begun:
            bucket = self._filling[key] = self.empty_bucket(primitive, static)
        number = bucket.add(x.values, x.type, static)
        with Quietly(self.cursor):
            if bucket.nbytes >= self.bucket:
                bucket.begin()
        (type_,) = self.infer(primitive, (x.type,), static)
        return RankValues(self, None, type_, pending=(bucket, number))

    def empty_bucket(self, primitive: Primitive, static: Static) -> Bucket:
        """Return a bucket for calls of a collective with such static parameters."""
        return Bucket(self.inner, primitive, static, self._begun)

    def _begun(self, primitive: Primitive, vectors: Sequence[Any], static: Static) -> Callable[[], Sequence[Any]]:
        sendable = getattr(self.inner, "sendable", None)
        if sendable is not None:
            began = self.exchanges.begun(primitive, vectors, static, sendable)
            if began is not None:
                return self._placed(began, primitive)
        values = dict(zip(self.hosted, vectors, strict=True))
        begun, inside = [], dict[int, Any]()
        for group in sorted({self._mesh.group(rank, static["axis"]) for rank in self.hosted}):
            own = {index: values[rank] for index, rank in enumerate(group) if rank in values}
            if len(own) == len(group):
                inside.update(zip(group, within(self.inner, primitive, list(own.values()), static)))
            else:
                begun.append((group, self._crossing.begun(primitive, group, own, static)))

        def finish() -> Sequence[Any]:
            found = {group[index]: out for group, each in begun for index, out in each.finish().items()}
            found.update(inside)
            return [found[rank] for rank in self.hosted]

        return finish

    def _placed(self, began: Callable[[], Sequence[Any]], primitive: Primitive) -> Callable[[], Sequence[Any]]:
        """Return `began`, whose errors say where the program is."""

        def finish() -> Sequence[Any]:
            try:
                return began()
            except LocatedError as error:
                error.place(primitive.name, self.cursor.region.name)
                raise

        return finish

    def _index(self, axis: str) -> RankValues:
        found = self._indices.get(axis)
        if found is None:
            numbers = [self.inner.const(i, dtype="int64") for i in range(self._mesh.size(axis))]
            places = [self._mesh.coordinate(rank, axis) for rank in self.hosted]
            found = self._indices[axis] = self.each([numbers[place] for place in places])
        return found


def on_mesh(base: BaseInterpreter[Any], options: Options) -> BaseInterpreter[Any]:
    """Return the ranks of the options' mesh, on `base`; `base` itself for one rank, or if it computes no numbers."""
    mesh = parse_mesh(options.mesh)
    if not base.executes or mesh.ranks == 1:
        return base
    require_mpi_tasks(mesh)
    transport = world()
    if transport.processes > 1 and options.use_gpu:
        from .nccl import on_gpus

        require_hosted(mesh, transport.processes)
        transport = on_gpus(transport, options.timeout)
    transport.wait_at_most(options.timeout)
    return Ranks(base, mesh, transport, 0 if options.bucket_size == "0" else parse_bytes(options.bucket_size))
