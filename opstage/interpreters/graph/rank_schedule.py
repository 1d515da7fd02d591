"""`overlapped`: a schedule of a rank's program that computes while collectives over processes are in flight.

A sum of the backward pass begins as soon as its bucket is full, and its readers run when nothing else is ready. Sums of
what depends on inputs alone begin first of all. A sharded parameter is gathered while the previous one is used
(prefetching, as in PyTorch's FSDP2). Fusion is decided before, so the schedule does not affect bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias, final

from ...compiler.codegen.clusters import FusionGroup, roots_read
from ...compiler.codegen.formulas import ASSEMBLE, CONTIGUOUS, PRODUCTS, REDUCTIONS, elementwise
from ...compiler.codegen.lowering import Lowered
from ...distributed.processes import Hosting
from ...ops.body import Equation
from ...ops.collective import ALL_GATHER, ALL_REDUCE, AXIS_INDEX, REDUCE_SCATTER, SHARD
from ...ops.primitive import Effect, Kind
from ...transforms.control_flow import get_bodies

Calls: TypeAlias = tuple[Equation, ...]


class Begin(NamedTuple):
    """Start collectives of one kind together."""

    calls: Calls


class End(NamedTuple):
    """Wait for the results of these collectives."""

    calls: Calls


Ordered: TypeAlias = "FusionGroup | Begin | End"

_PREPARES = (SHARD, AXIS_INDEX, CONTIGUOUS, ASSEMBLE)
"""Ops that may be computed ahead of the rest, apart from reductions and functions of single numbers."""


def ahead(lowered: Lowered) -> set[int]:
    """Return the outputs of sums over ranks that only depend on inputs by few operations, and of what they read: such
    as of the number of targets that count, which divides a loss.

    They are computed first, by loops of their own; so such a sum is there when the backward pass needs it. Which they
    are depends on the program alone.
    """
    made = {slot: e for e in lowered.equations for slot in e.outputs}
    reads = {e.outputs[0]: [made[root] for root in roots_read(lowered, [e]) if root in made] for e in made.values()}
    few: dict[int, bool] = {}  # by output, whether it depends on inputs by few operations
    for e in lowered.equations:
        types = lowered.types
        simple = e.primitive in (*REDUCTIONS, *_PREPARES) or (
            len(e.outputs) == 1
            and elementwise(e.primitive, tuple([types[slot] for slot in e.inputs]), types[e.outputs[0]])
        )
        few[e.outputs[0]] = simple and all(few[other.outputs[0]] for other in reads[e.outputs[0]])
    found: set[int] = set()
    for e in lowered.equations:
        if e.primitive is ALL_REDUCE and all(few[other.outputs[0]] for other in reads[e.outputs[0]]):
            waiting = [e]
            while waiting:
                one = waiting.pop()
                if one.outputs[0] not in found:
                    found.update(one.outputs)
                    waiting += reads[one.outputs[0]]
    return found


def overlapped(lowered: Lowered, groups: Sequence[FusionGroup], hosting: Hosting, bucket: int) -> list[Ordered]:
    """Return the groups of a rank's program in an overlapping order, with buckets of about `bucket` bytes.

    The order is unchanged if `bucket` is 0 or all ranks are in one process.
    """
    if not bucket or hosting.transport.processes == 1:
        return list(groups)
    return _Overlap(lowered, groups, hosting, bucket).order()


@final
class _Overlap:
    def __init__(self, lowered: Lowered, groups: Sequence[FusionGroup], hosting: Hosting, bucket: int):
        self._lowered, self._groups, self._hosting, self._bucket = lowered, groups, hosting, bucket
        maker = {slot: i for i, group in enumerate(groups) for e in group.equations for slot in e.outputs}
        self._reads: list[set[int]] = []
        outside: int | None = None
        for i, group in enumerate(groups):
            roots = roots_read(lowered, group.equations)
            self._reads.append({maker[root] for root in roots if root in maker} - {i})
            if any(Effect.EXTERNAL in e.effects for e in group.equations):  # external effects keep their order
                if outside is not None:
                    self._reads[i].add(outside)
                outside = i
        self._maker = maker
        self._readers: dict[int, set[int]] = {}
        for i, reads in enumerate(self._reads):
            for other in reads:
                self._readers.setdefault(other, set()).add(i)
        self._ahead = {i for i, group in enumerate(groups) if group.ahead and self._is_reduced(group)}
        self._waits = self._ahead | {i for i in range(len(groups)) if self._is_sum(i) or self._is_last(i)}
        self._order: list[Ordered] = []
        self._filling: dict[tuple[object, ...], list[int]] = {}
        self._begun: list[tuple[int, ...]] = []

    def order(self) -> list[Ordered]:
        """Return the complete schedule."""
        waiting = [i for _, _, i in sorted(self._places())]
        done: set[int] = set()
        while waiting or self._filling or self._begun:
            later = []
            for i in waiting:
                if not self._reads[i] <= done:
                    later.append(i)
                elif i in self._waits:
                    self._add(i)
                else:
                    self._order.append(self._groups[i])
                    done.add(i)
            waiting = later
            if not self._begun or not self._waits.intersection(waiting):  # no other one joins them before one has ended
                for key in [*self._filling]:
                    self._begin(self._filling.pop(key))
            if self._begun:
                first = self._begun.pop(0)
                self._order.append(End(self._calls(first)))
                done.update(first)
        return self._prefetched()

    def _is_sum(self, i: int) -> bool:
        """Return whether it is a sum over processes that can overlap with other work: of a gradient, or of a value that
        only the step's outputs depend on, such as the loss."""
        e = self._groups[i].equations[0]
        if e.primitive is ALL_REDUCE:
            maker = self._maker.get(self._lowered.views[e.inputs[0]].root) if self._has_memory(e) else None
            of_gradient = maker is not None and bool(self._groups[maker].equations[-1].backward)
            return (bool(e.backward) or of_gradient or not self._feeds_work(i)) and self._crosses(e)
        return e.primitive is REDUCE_SCATTER and self._crosses(e)

    def _is_reduced(self, group: FusionGroup) -> bool:
        e = group.equations[0]
        return e.primitive is ALL_REDUCE and self._crosses(e)

    def _feeds_work(self, i: int) -> bool:
        """Return whether a matrix product or a collective depends on its results."""
        found, waiting = {i}, [i]
        while waiting:
            for j in self._readers.get(waiting.pop(), set()) - found:
                if self._is_much(j):
                    return True
                found.add(j)
                waiting.append(j)
        return False

    def _is_much(self, i: int) -> bool:
        e = self._groups[i].equations[0]
        return e.primitive in PRODUCTS or e.primitive.kind is Kind.COLLECTIVE or any(get_bodies(e.static))

    def _is_last(self, i: int) -> bool:
        """Return whether it gathers a value that is only an output."""
        e = self._groups[i].equations[0]
        readers = self._readers.get(i, set())
        last = all(self._copies(j) and not self._readers.get(j) for j in readers)
        return e.primitive is ALL_GATHER and last and self._crosses(e) and not self._is_gather(self._groups[i])

    def _copies(self, i: int) -> bool:
        return all(e.primitive in (ASSEMBLE, CONTIGUOUS) for e in self._groups[i].equations)

    def _crosses(self, e: Equation) -> bool:
        return self._hosting.crosses(e.static["axis"])

    def _has_memory(self, e: Equation) -> bool:
        return e.inputs[0] not in self._lowered.literals

    def _places(self) -> list[tuple[int, int, int]]:
        """Sums, and what is made for them alone by copies, right after what they read."""
        early = set(self._waits)
        for i in range(len(self._groups) - 1, -1, -1):
            readers = self._readers.get(i)
            if readers and readers <= early and self._copies(i):
                early.add(i)
        places: list[tuple[int, int, int]] = []
        for i, reads in enumerate(self._reads):
            place = max([places[j][0] for j in reads], default=-1)
            places.append((place, 1, i) if i in early else (i, 0, i))
        return places

    def _add(self, i: int) -> None:
        e = self._groups[i].equations[0]
        if i in self._ahead:
            self._begin([i])  # its readers wait for it alone
            return
        if e.primitive is not ALL_REDUCE and self._nbytes(i) >= self._bucket:
            self._begin([i])  # past the others, since joining parts copies them; sums stand in their bucket
            return
        key = e.primitive, e.static["axis"], self._lowered.types[e.inputs[0]].dtype
        self._filling.setdefault(key, []).append(i)
        if sum(self._nbytes(each) for each in self._filling[key]) >= self._bucket:
            self._begin(self._filling.pop(key))

    def _nbytes(self, i: int) -> int:
        return int(self._lowered.types[self._groups[i].equations[0].inputs[0]].nbytes)

    def _begin(self, numbers: Sequence[int]) -> None:
        self._begun.append(tuple(numbers))
        self._order.append(Begin(self._calls(numbers)))

    def _calls(self, numbers: Sequence[int]) -> Calls:
        return tuple([self._groups[i].equations[0] for i in numbers])

    def _prefetched(self) -> list[Ordered]:
        """The order with parameters gathered one ahead."""
        gathers = [i for i, each in enumerate(self._order) if isinstance(each, FusionGroup) and self._is_gather(each)]
        following = dict(pairwise(gathers))
        order: list[Ordered] = []
        for i, each in enumerate(self._order):
            if i not in gathers:
                order.append(each)
                continue
            ahead = [i] if i == gathers[0] else []
            if i in following:
                ahead.append(following[i])
            order += [Begin(self._call_at(at)) for at in ahead]
            order.append(End(self._call_at(i)))
        return order

    def _call_at(self, place: int) -> Calls:
        group = self._order[place]
        assert isinstance(group, FusionGroup)
        return (group.equations[0],)

    def _is_gather(self, group: FusionGroup) -> bool:
        """Whether it gathers an input, which is there from the beginning."""
        e = group.equations[0]
        if e.primitive is not ALL_GATHER or not self._has_memory(e) or not self._crosses(e):
            return False
        return self._lowered.views[e.inputs[0]].root in self._lowered.body.inputs
