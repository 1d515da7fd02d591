"""The order of a compiled step whose sums are under way while it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from opstage.interpreters.codegen.clusters import FusionGroup
from opstage.interpreters.graph import rank_programs
from opstage.interpreters.graph.executor import CpuExecutor
from opstage.interpreters.graph.overlap import Begin, End
from opstage.ops.kinds import Kind
from tests.mesh.test_processes import trained
from tests.mesh.threads import on_processes


class Seen:
    """The steps of one process: their orders, and the memory that they compute in."""

    def __init__(self, patch: pytest.MonkeyPatch, zero: int, bucket: str):
        self.orders: list[Sequence[Any]] = []
        self.arena = 0
        within, made = rank_programs.overlapped, CpuExecutor.__init__

        def order(lowered: Any, groups: Any, hosting: Any, bucket: int) -> Any:
            found = within(lowered, groups, hosting, bucket)
            if hosting.fabric.process == 0:
                self.orders.append(found)
            return found

        def executor(this: Any, *arguments: Any) -> None:
            made(this, *arguments)
            self.arena = max(self.arena, this.plan.arena_bytes)

        with patch.context() as here:
            here.setattr(rank_programs, "overlapped", order)
            here.setattr(CpuExecutor, "__init__", executor)
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


def test_a_parameter_in_parts_is_dropped_behind_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    gathers = [call for call in Seen(monkeypatch, 3, "0").calls if call.startswith("all_gather")]
    assert len(gathers) > len([call for call in Seen(monkeypatch, 2, "0").calls if call.startswith("all_gather")])
