"""Meetings: the collectives of a compiled program, as one op for all hosted ranks.

A compiled program is that of one rank, run once per hosted rank. `meet` takes the operands of all of them; the
collective itself is that of `Ranks` on arrays, so it has the bits of the eager interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias, cast, final

import numpy as np

from ..ops.collective import ALL_GATHER, ALL_REDUCE, BY_NAME, REDUCE_SCATTER
from ..ops.dims import prod
from ..ops.errors import MeshError
from ..ops.host_arrays import Array
from ..ops.primitive import Primitive, Static
from ..ops.types import INT64, TensorType, dtype_name
from .exchanges import PendingGather, PendingScatter, PendingSum, PreparedExchange, Sum, gather, scatter
from .processes import Hosting
from .transport import engine_op, get_handle, get_object

# Prepared exchanges ---------------------------------------------------------------------------------------------------

PENDING = (PendingSum, PendingScatter, PendingGather)

MemberType: TypeAlias = "tuple[tuple[int, ...], str]"
"""The shape and dtype of a member of an exchange."""


@final
class Prepared:
    """The prepared exchanges of the current program of one kind of inputs.

    pending       the numbers of exchanges that the current run has begun
    by_meeting  the exchanges of meetings in compiled programs, by the identity of their static parameters
    """

    def __init__(self, hosting: Hosting):
        self._hosting = hosting
        self._program = ""
        self._made: dict[tuple[object, ...], PreparedExchange | None] = {}
        self._axes: dict[str, tuple[int, Sequence[int]]] = {}
        self.pending: list[int] = []
        self.by_meeting: dict[int, tuple[Static, PreparedExchange | None]] = {}

    def begin(self, program: str) -> None:
        """Begin a program with this description, which the names of exchanges have."""
        if program != self._program:
            self._program = program
            self._made.clear()
            self.by_meeting.clear()

    def begun(
        self, primitive: Primitive, vectors: Sequence[Array], static: Static, sendable: Callable[[Array], Array]
    ) -> Callable[[], Sequence[Array]] | None:
        """Start a collective on the hosted ranks' vectors; return a function that waits for their results.

        `sendable` returns an array that is not overwritten before the end. Returns None if `Crossing` must do it.
        """
        axis: str = static["axis"]
        x = vectors[0]
        exchange = self.of(primitive.name, axis, (static.get("dim", 0),), ((x.shape, x.dtype.str),))
        if exchange is None:
            return None
        sent = {id(vector): sendable(vector) for vector in {id(vector): vector for vector in vectors}.values()}
        pending = exchange.begin([sent[id(vector)] for vector in vectors])

        def finish() -> Sequence[Array]:
            ranks, firsts = self._axis_groups(axis)
            shape = x.shape
            if primitive is REDUCE_SCATTER:
                shape, firsts = (shape[0] // ranks, *shape[1:]), range(len(firsts))
            elif primitive is ALL_GATHER:
                shape = shape[0] * ranks, *shape[1:]
            outs = {number: np.empty(shape, x.dtype) for number in dict.fromkeys(firsts)}
            pending.end([outs])
            return [outs[number] for number in firsts]

        return finish

    def _axis_groups(self, axis: str) -> tuple[int, Sequence[int]]:
        """Return the size of an axis, and the first hosted rank of the group of each."""
        found = self._axes.get(axis)
        if found is None:
            alike: dict[int, int] = {}
            firsts = [alike.setdefault(group, number) for number, group in enumerate(self._hosting.groups(axis))]
            found = self._axes[axis] = self._hosting.mesh.size(axis), firsts
        return found

    def of(self, call: str, axis: str, dims: Sequence[int], types: tuple[MemberType, ...]) -> PreparedExchange | None:
        """Return the exchange for a collective's calls on members of these types; None if `Ranks` must do it.

        `dims` has the axis of each member that is cut or joined.
        """
        key = call, axis, dims, types
        if key not in self._made:
            self._made[key] = self._exchange(call, axis, dims, types)
        return self._made[key]

    def _exchange(
        self, call: str, axis: str, dims: Sequence[int], types: tuple[MemberType, ...]
    ) -> PreparedExchange | None:
        sizes = [int(prod(shape)) for shape, _ in types]
        dtype, program = np.dtype(types[0][1]), self._program
        if min(sizes) == 0:
            return None
        if call == ALL_REDUCE.name and len(types) == 1:
            made = Sum(self._hosting, axis, types[0][0], dtype, program)
            return made if made.sent_whole else None
        if any(dim % max(1, len(shape)) for dim, (shape, _) in zip(dims, types)):
            return None
        if call == REDUCE_SCATTER.name:
            return scatter(self._hosting, axis, sizes, dtype, program)
        return gather(self._hosting, axis, sizes, dtype, program) if call == ALL_GATHER.name else None


def meeting(ranks: Any, primitive: Primitive, static: Static, gives: Sequence[int]) -> Static:
    """Return the static parameters of `meet` for `ranks` on arrays: the collective, and the numbers of the hosted ranks
    whose results it returns."""
    return {
        "ranks": get_handle(ranks),
        "call": primitive.name,
        "given": tuple(sorted(static.items())),
        "gives": tuple(gives),
    }


def _shape(*values: TensorType, ranks: int, call: str, given: Any, gives: Sequence[int]) -> tuple[TensorType, ...]:
    return BY_NAME[call].infer(values[:1], dict(given)) * len(gives)


def _meet(*values: Array, ranks: int, call: str, given: Any, gives: Sequence[int]) -> tuple[Array, ...]:
    ops = get_object(ranks)
    found = ops.collective(BY_NAME[call], (ops.each(values),), dict(given)).values
    return tuple([found[number] for number in gives])


def _meet_on_device(
    device: Any, types: Any, *values: Any, ranks: int, call: str, given: Any, gives: Sequence[int]
) -> tuple[Any, ...]:
    ops = get_object(ranks).at(device)
    found = ops.collective(BY_NAME[call], (ops.each(values),), dict(given)).values
    return tuple([found[number] for number in gives])


MEET = engine_op("meet", ("x", "*more"), _shape, _meet, _meet_on_device)


class Joint(NamedTuple):
    """Calls of one collective that start together, as plain data.

    given   the static parameters of the first call; `dims` has the axis that each splits or joins
    types   (shape, dtype) of the operand of each
    gives   for each, the numbers of the hosted ranks whose results it returns
    """

    call: str
    given: tuple[tuple[str, Any], ...]
    dims: tuple[int, ...]
    types: tuple[tuple[tuple[int, ...], str], ...]
    gives: tuple[tuple[int, ...], ...]

    @property
    def operands(self) -> list[TensorType]:
        """Return the types of the operands."""
        return [TensorType(shape, np.dtype(dtype)) for shape, dtype in self.types]


def joint(calls: Sequence[tuple[Primitive, Static, TensorType, Sequence[int]]]) -> Joint:
    """Return the calls of one collective, given (primitive, static parameters, operand type, returned ranks) of
    each."""
    primitive, static, _, _ = calls[0]
    return Joint(
        primitive.name,
        tuple(sorted(static.items())),
        tuple([each.get("dim", 0) for _, each, _, _ in calls]),
        tuple([(cast("tuple[int, ...]", type_.shape), dtype_name(type_.dtype)) for _, _, type_, _ in calls]),
        tuple([tuple(gives) for *_, gives in calls]),
    )


_PENDING: dict[int, Any] = {}
_NUMBERS = count(1)


def _begun(*values: TensorType, ranks: int, calls: Joint) -> tuple[TensorType, ...]:
    return (TensorType((), INT64),)


def _start_bucket(ops: Any, values: Sequence[Any], calls: Joint) -> Any:
    """Start a bucket with the calls of a collective."""
    bucket, each = ops.empty_bucket(BY_NAME[calls.call], dict(calls.given)), len(ops.hosted)
    for i, (type_, dim) in enumerate(zip(calls.operands, calls.dims)):
        bucket.add(values[i * each : (i + 1) * each], type_, {"dim": dim})
    bucket.begin()
    return bucket


def _begin(*values: Array, ranks: int, calls: Joint) -> tuple[Array, ...]:
    number = next(_NUMBERS)
    _PENDING[number] = _start_bucket(get_object(ranks), values, calls)
    return (np.array(number),)


_PENDING_ON_DEVICE: dict[Any, Any] = {}
"""Pending buckets on a device, by the memory of the placeholder tensor of each, which is never read."""


def _begin_on_device(device: Any, types: Any, *values: Any, ranks: int, calls: Joint) -> tuple[Any, ...]:
    pending = device.empty(types[0])
    _PENDING_ON_DEVICE[pending.memory] = _start_bucket(get_object(ranks).at(device), values, calls)
    return (pending,)


def _ended(pending: TensorType, *values: TensorType, calls: Joint) -> tuple[TensorType, ...]:
    made: list[TensorType] = []
    for type_, dim, gives in zip(calls.operands, calls.dims, calls.gives):
        given = dict(calls.given)
        made += BY_NAME[calls.call].infer((type_,), {**given, "dim": dim} if "dim" in given else given) * len(gives)
    return tuple(made)


def _results(bucket: Any, calls: Joint) -> tuple[Any, ...]:
    return tuple([bucket.result(i)[rank] for i, gives in enumerate(calls.gives) for rank in gives])


def _end(pending: Array, *values: Array, calls: Joint) -> tuple[Array, ...]:
    return _results(_PENDING.pop(int(pending)), calls)


def _end_on_device(device: Any, types: Any, pending: Any, *values: Any, calls: Joint) -> tuple[Any, ...]:
    return _results(_PENDING_ON_DEVICE.pop(pending.memory), calls)


MEET_BEGIN = engine_op("meet_begin", ("x", "*more"), _begun, _begin, _begin_on_device, outputs=("pending",))
"""Starts several meetings that continue while the program runs."""

MEET_END = engine_op("meet_end", ("pending", "*values"), _ended, _end, _end_on_device)
"""Ends pending meetings. Its operands include those of the start, which must not be overwritten until then."""

MEETINGS = (MEET, MEET_BEGIN, MEET_END)


def meet(
    primitive: Primitive, values: Sequence[Array], places: Sequence[Array], static: Static, into: Sequence[Array]
) -> None:
    """Run one of MEETINGS, and write the results to their places. What comes may be received `into` arrays, which are
    those of the results once it ends.

    Sums that processes exchange whole, and parts, are computed directly in place, see `Prepared`; others by `Ranks`,
    then copied.
    """
    if primitive is MEET_END:
        number = int(values[0])
        begun = _PENDING.get(number)
        if isinstance(begun, PENDING):
            del _PENDING[number]
            begun.end(_outs(static["calls"].gives, places))
            return
        results = _end(*values, **static)
    else:
        prepared: Prepared = get_object(static["ranks"]).exchanges
        exchange = _prepared(prepared, primitive, values[0], static)
        if exchange is None:
            results = (_meet if primitive is MEET else _begin)(*values, **static)
        elif primitive is MEET:
            exchange.begin(values, into).end(_outs((static["gives"],), places))
            return
        else:
            number = next(_NUMBERS)
            _PENDING[number] = exchange.begin(values, into)
            prepared.pending.append(number)
            results = (np.array(number),)
    for place, result in zip(places, results):
        np.copyto(place, result)


def abandon(ranks: Any) -> None:
    """Leave the exchanges that an earlier run of a program, which failed, left unfinished."""
    numbers: list[int] = ranks.exchanges.pending
    for number in numbers:
        begun = _PENDING.pop(number, None)
        if begun is not None:
            begun.abandon()
    numbers.clear()


def _prepared(prepared: Prepared, primitive: Primitive, x: Array, static: Static) -> PreparedExchange | None:
    """Return the prepared exchange of a meeting, or of those that start together."""
    known = prepared.by_meeting.get(id(static))
    if known is None:
        if primitive is MEET:
            given = dict(static["given"])
            found = prepared.of(static["call"], given["axis"], (given.get("dim", 0),), ((x.shape, x.dtype.str),))
        else:
            calls: Joint = static["calls"]
            found = prepared.of(calls.call, dict(calls.given)["axis"], calls.dims, calls.types)
        known = prepared.by_meeting[id(static)] = static, found
    return known[1]


def _outs(gives: Sequence[Sequence[int]], places: Sequence[Array]) -> list[dict[int, Array]]:
    """Return the places of each call's results, by rank number."""
    left = iter(places)
    return [dict(zip(ranks, left)) for ranks in gives]


def apart(primitive: Primitive, region: str) -> MeshError:
    """Return the error of data-dependent control flow in which communicating ranks might diverge."""
    return MeshError(
        "its bodies have collectives, which all ranks must reach alike, but what it decides by may differ between "
        "them; decide by what all ranks have, such as an all_reduce, or move the collectives out of it",
        op=primitive.name,
        region=region,
    )
