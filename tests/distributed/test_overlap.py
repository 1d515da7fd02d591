"""The order of a compiled step whose sums are under way while it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from opstage.compiler.codegen.clusters import FusionGroup
from opstage.compiler.codegen.formulas import PRODUCTS
from opstage.distributed import compiled_collectives as meeting
from opstage.distributed.buckets import Bucket
from opstage.distributed.compiled_collectives import Prepared
from opstage.distributed.exchanges import PendingVectors, Sum
from opstage.interpreters.graph import rank_programs
from opstage.interpreters.graph.cpu.plan import CpuPlan
from opstage.interpreters.graph.rank_schedule import Begin, End
from opstage.ops.collective import ALL_REDUCE, REDUCE_SCATTER
from opstage.ops.primitive import Kind
from tests.distributed.compared import noting
from tests.distributed.test_processes import trained
from tests.distributed.threads import Threads, on_processes


class Seen:
    """The orders of the steps of one process."""

    def __init__(self, patch: pytest.MonkeyPatch, zero: int, bucket: str):
        self.orders: list[Sequence[Any]] = []

        def order(found: Any, lowered: Any, groups: Any, hosting: Any, bucket: int) -> None:
            if hosting.transport.process == 0:
                self.orders.append(found)

        with patch.context() as here:
            noting(here, rank_programs, "overlapped", order)
            on_processes(2, lambda _: trained("mlp", "data=2", "compiled", zero=zero, bucket=bucket, steps=1))
        self.step = max(self.orders, key=len)

    @property
    def calls(self) -> list[str]:
        """The collectives, in the order of their results."""
        return sorted(
            str(e.primitive) + str(e.outputs)
            for each in self.step
            if not isinstance(each, Begin)
            for e in (each.calls if isinstance(each, End) else each.equations)
            if e.primitive.kind is Kind.COLLECTIVE
        )


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_all_that_can_be_done_meanwhile_is_done_meanwhile(zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, overlapped = Seen(monkeypatch, zero, "0"), Seen(monkeypatch, zero, "1KiB")
    assert all(isinstance(each, FusionGroup) for each in plain.step)
    assert plain.calls == overlapped.calls
    begun, ended = (
        {str(each.calls): place for place, each in enumerate(overlapped.step) if isinstance(each, moment)}
        for moment in (Begin, End)
    )
    assert begun and begun.keys() == ended.keys()
    meanwhile = []
    for calls, first in begun.items():
        assert first < ended[calls]
        meanwhile.append(sum(isinstance(each, FusionGroup) for each in overlapped.step[first : ended[calls]]))
    assert max(meanwhile) >= 3


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_what_depends_on_inputs_alone_is_summed_first_of_all(zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Seen(monkeypatch, zero, "1MiB").step
    products = [(i, each.equations[0]) for i, each in enumerate(step) if isinstance(each, FusionGroup)]
    products = [(i, e) for i, e in products if e.primitive in PRODUCTS]
    forward, backward = ([i for i, e in products if bool(e.backward) is part] for part in (False, True))
    counts = [i for i, each in enumerate(step) if isinstance(each, Begin) and each.calls[0].primitive is ALL_REDUCE]
    (ended,) = [i for i, each in enumerate(step) if isinstance(each, End) and each.calls == step[counts[0]].calls]
    assert counts[0] < forward[0]
    assert forward[-1] < ended < backward[0]
    before = [each for each in step[: counts[0]] if isinstance(each, FusionGroup) and each.ahead]
    assert before and all(each.ahead == (each in before) for each in step if isinstance(each, FusionGroup))


@pytest.mark.parametrize("zero", [2, 3])
def test_what_buckets_have_in_the_end_begins_before_any_of_it_is_waited_for(
    zero: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Seen(monkeypatch, zero, "1MiB").step
    (scattered,) = [
        i for i, each in enumerate(step) if isinstance(each, Begin) and each.calls[0].primitive is REDUCE_SCATTER
    ]
    before, after = step[scattered - 1], step[scattered + 1]
    assert isinstance(before, Begin) and before.calls[0].primitive is ALL_REDUCE
    assert isinstance(after, End) and after.calls == before.calls


def test_a_parameter_in_parts_is_dropped_behind_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    gathers = [call for call in Seen(monkeypatch, 3, "0").calls if call.startswith("all_gather")]
    assert len(gathers) > len([call for call in Seen(monkeypatch, 2, "0").calls if call.startswith("all_gather")])


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_small_step_is_two_exchanges_of_what_its_targets_count_and_of_all_the_rest(backend: str) -> None:
    def run(transport: Threads) -> list[int]:
        said: list[str] = []
        start = transport.start

        def counted(parts: Any, room: Any, called: str) -> Any:
            said.append(called.partition(" (")[0])
            return start(parts, room, called)

        transport.start = counted  # type: ignore[method-assign]
        trained("mlp", "data=2", backend, bucket="1MiB", steps=3)
        return [len(said), len({*said})]

    for exchanges, kinds in on_processes(2, run):
        assert exchanges == 3 * 2
        assert kinds <= 3


def test_sums_of_ranks_are_written_where_they_stand_in_one_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    noting(monkeypatch, Sum, "begin", lambda made, this, values, *into: seen.extend(values))
    on_processes(2, lambda _: trained("mlp", "data=4", "compiled", bucket="1MiB", steps=1))
    vectors = [value for value in seen if value.ndim == 1 and value.size > 1000]
    assert len(vectors) == 4  # a rank's on each of two that each process hosts
    assert all(vector.base is not None for vector in vectors)  # of the program's memory: nothing was copied together


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_what_fills_a_bucket_by_itself_is_sent_as_it_is(monkeypatch: pytest.MonkeyPatch, zero: int) -> None:
    sent: list[tuple[Any, Any]] = []
    noting(monkeypatch, Bucket, "_pack", lambda vector, this, xs: sent.append((vector, xs)))
    on_processes(2, lambda _: trained("mlp", "data=2", zero=zero, bucket="4KiB", steps=1))
    large = [(vector, [x for x in xs if x.nbytes >= 4096]) for vector, xs in sent]
    large = [(vector, xs) for vector, xs in large if xs]
    assert len(large) >= 4  # of two layers, on two processes
    for vector, (x, *others) in large:
        assert not others and np.shares_memory(vector, x)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("bucket", ["4KiB", "1MiB"])
def test_parts_go_by_prepared_exchanges(monkeypatch: pytest.MonkeyPatch, zero: int, bucket: str) -> None:
    """None of them by general ops, which copy; and what one array holds is sent as a view of it."""

    def general(*_: Any, **static: Any) -> Any:
        raise AssertionError(f"{static['calls']} goes by general ops")

    monkeypatch.setattr(meeting, "_begin", general)
    sent: list[tuple[Any, Sequence[Any]]] = []
    noting(monkeypatch, PendingVectors, "pack_rows", lambda made, this, process, members: sent.append((made, members)))
    on_processes(2, lambda _: trained("mlp", "data=2", "compiled", zero=zero, bucket=bucket, steps=1))
    assert sent
    assert all(np.shares_memory(made, members[0]) for made, members in sent if len(members) == 1)


def test_an_exchange_is_prepared_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    noting(monkeypatch, Prepared, "_exchange", lambda found, this, call, *arguments: made.append(call))
    counts = []
    for steps in (1, 4):
        made.clear()
        on_processes(2, lambda _, steps=steps: trained("mlp", "data=2", "compiled", zero=2, bucket="1MiB", steps=steps))  # type: ignore[misc]
        counts.append(len(made))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_what_others_may_read_is_not_overwritten_in_the_same_run(zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI reads the operands of a begun sum where they stand, until it ends."""
    plans: list[CpuPlan] = []
    noting(monkeypatch, CpuPlan, "__init__", lambda made, this, *arguments: plans.append(this))
    on_processes(2, lambda _: trained("gpt", "data=2", "compiled", zero=zero, bucket="64KiB", steps=1))
    begun = 0
    for plan in plans:
        lowered = plan.lowered
        extents = {
            slot: (offset, offset + int(lowered.types[slot].nbytes))
            for slot, offset in plan.offsets.items()
            if isinstance(slot, int)
        }
        for number, group in enumerate(plan.groups):
            (e, *_) = group.equations
            if e.primitive is not meeting.MEET_BEGIN:
                continue
            begun += 1
            end = next(i for i, each in enumerate(plan.groups) if e.outputs[0] in each.equations[0].inputs)
            later = {slot for i in range(number + 1, end) for each in plan.groups[i].equations for slot in each.outputs}
            for x in {lowered.views[slot].root for slot in e.inputs} & extents.keys():
                first, last = extents[x]
                over = [slot for slot in later & extents.keys() if extents[slot][0] < last and first < extents[slot][1]]
                assert over == [], (x, over)
    assert begun >= 4
