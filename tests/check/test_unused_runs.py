"""Inputs that a program makes nothing of: however many there are, the program is looked through once more for them."""

from __future__ import annotations

from typing import Any

import opstage
from opstage import Spec


def test_idle_inputs_are_found_in_one_more_run() -> None:
    runs = []

    def program(ops: Any, x: Any, idle: Any, scalars: Any, template: Any) -> Any:
        runs.append(1)
        return ops.broadcast_to(ops.sum(x), shape=template.shape)

    idle, scalars = [Spec("K", dtype="int64")] * 20, [Spec("")] * 20
    report = opstage.check(program, Spec("B"), idle, scalars, Spec("N M"))
    assert report.ok and len(runs) == 2
    named = {warning.op for warning in report.warnings}
    assert named == {f"idle.{i}" for i in range(20)} | {f"scalars.{i}" for i in range(20)}


def test_where_the_sizes_of_one_end_it_the_others_are_still_found() -> None:
    def program(ops: Any, x: Any, idle: Any, rounds: Any) -> Any:
        for _ in range(int(rounds.shape[0])):
            x = ops.scale(x, c=2.0)
        return x

    report = opstage.check(program, Spec("B"), Spec("K"), Spec("3"))
    assert report.ok and [warning.op for warning in report.warnings] == ["idle"]
