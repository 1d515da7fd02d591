"""The profile of a compiled program: the time of every kernel, compared with the machine's limit."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple, final

from ...ops.errors import UsageError
from ...ops.primitive import Cost
from .cpu.cost import works
from .cpu.limits import Limits
from .executor import CpuExecutor


class KernelProfile(NamedTuple):
    """All kernels of one name and detail in a run of the program, with their combined figures.

    detail          operand sizes, for an op that is not fused with others
    times           number of kernels
    least_seconds   time at the machine's limit
    """

    name: str
    detail: str
    times: int
    seconds: float
    least_seconds: float
    cost: Cost

    @property
    def share_of_limit(self) -> float | None:
        """Fraction of the limit reached: above 1 if operands were in a cache, None if no time was measured."""
        return self.least_seconds / self.seconds if self.seconds else None


@final
class Profile:
    """Time of a program by kernel.

    rows      sorted by time, longest first
    seconds   of all kernels together
    limits    of the machine
    """

    __slots__ = ("rows", "seconds", "limits")

    def __init__(self, rows: list[KernelProfile], limits: Limits):
        self.rows = sorted(rows, key=lambda row: -row.seconds)
        self.seconds = sum(row.seconds for row in rows)
        self.limits = limits

    @property
    def least_seconds(self) -> float:
        """Return the time of all kernels at the machine's limit."""
        return sum(row.least_seconds for row in self.rows)

    def table(self, most: int | None = None) -> str:
        """Return a table with a line for each of the first `most` rows, and the totals."""
        lines = [
            f"{'ms':>9}{'share':>8}{'count':>7}{'MFLOP':>10}{'MB':>9}{'GFLOP/s':>9}{'GB/s':>7}{'limit':>7}  kernel"
        ]
        shown = self.rows[:most]
        lines += [self._line(row) for row in shown]
        rest = self.rows[len(shown) :]
        if rest:
            lines.append(self._line(_together(rest, f"{len(rest)} more")))
        lines.append(self._line(_together(self.rows, "all kernels")))
        return "\n".join(lines)

    def as_data(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        return {
            "limits": self.limits._asdict(),
            "kernels_ms": 1e3 * self.seconds,
            "least_ms": 1e3 * self.least_seconds,
            "kernels": [self._data(row) for row in self.rows],
        }

    def _line(self, row: KernelProfile) -> str:
        flops, moved = float(row.cost.flops), float(row.cost.bytes)
        reached = row.share_of_limit
        share = row.seconds / self.seconds if self.seconds else 0.0
        name = f"{row.name} ({row.detail})" if row.detail else row.name
        return (
            f"{1e3 * row.seconds:>9.3f}{share:>8.1%}{row.times:>7}{flops / 1e6:>10.2f}{moved / 1e6:>9.2f}"
            f"{_rate(flops, row.seconds):>9.1f}{_rate(moved, row.seconds):>7.1f}"
            f"{'-' if reached is None else f'{reached:.0%}':>7}  {name}"
        )

    def _data(self, row: KernelProfile) -> dict[str, Any]:
        return {
            "kernel": row.name,
            "operands": row.detail,
            "count": row.times,
            "ms": 1e3 * row.seconds,
            "share": row.seconds / self.seconds if self.seconds else None,
            "flops": int(row.cost.flops),
            "bytes": int(row.cost.bytes),
            "gflop_per_s": _rate(float(row.cost.flops), row.seconds),
            "gb_per_s": _rate(float(row.cost.bytes), row.seconds),
            "share_of_limit": row.share_of_limit,
        }


def profile(executor: CpuExecutor, run: Callable[[], object], limits: Limits, rounds: int = 10) -> Profile:
    """Profile the program that `run()` runs on `executor`; times are medians of `rounds` rounds.

    Each step of the plan runs by itself, which adds a call of one or two microseconds. Raises UsageError for a program
    that is replayed op by op.
    """
    plan = executor.plan
    if plan is None:
        raise UsageError("a program of fractions is replayed op by op and has no kernels; profile it in floats")
    measured: list[list[float]] = []
    try:
        for _ in range(rounds + 1):
            executor.seconds = seconds = [0.0] * len(plan.steps)
            run()
            measured.append(seconds)
    finally:
        executor.seconds = None
    each = [statistics.median(taken) for taken in zip(*measured[1:])]
    rows: dict[tuple[str, str], KernelProfile] = {}
    for work in works(plan):
        seconds_here = sum(each[work.first : work.first + work.steps])
        row = KernelProfile(work.name, work.detail, 1, seconds_here, limits.seconds(work.cost), work.cost)
        known = rows.get((work.name, work.detail))
        rows[work.name, work.detail] = row if known is None else _together([known, row], work.name, work.detail)
    return Profile(list(rows.values()), limits)


def _together(rows: list[KernelProfile], name: str, detail: str = "") -> KernelProfile:
    flops, moved = sum(int(row.cost.flops) for row in rows), sum(int(row.cost.bytes) for row in rows)
    seconds, least = sum(row.seconds for row in rows), sum(row.least_seconds for row in rows)
    return KernelProfile(name, detail, sum(row.times for row in rows), seconds, least, Cost(flops, moved))


def _rate(amount: float, seconds: float) -> float:
    """Return the rate in units of 10^9 per second."""
    return amount / seconds / 1e9 if seconds else 0.0
