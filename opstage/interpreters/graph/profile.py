"""A compiled program: its passes, kernels and memory, and the time of every kernel beside the machine's limit."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, final

from ...compiler.codegen.arena import Item, arrange
from ...compiler.codegen.cpu.arguments import LoopSource, Scratch
from ...compiler.codegen.cpu.kernels import NativeStep
from ...compiler.codegen.formulas import PRODUCTS
from ...compiler.codegen.lowering import Lowered
from ...ops.errors import UsageError
from ...ops.primitive import Cost
from ...options import Options
from .cpu.cost import Limits, works
from .cpu.plan import ControlStep, CpuPlan, HostStep, carried, optimise
from .executor import CpuExecutor
from .graph import Graph
from .outline import show_bytes
from .passes.pipeline import Notes


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
        raise UsageError(
            "a program of fractions is not supported: it is replayed op by op, without kernels; profile it in floats"
        )
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


# Explanation ----------------------------------------------------------------------------------------------------------


class MemoryUse(NamedTuple):
    """Bytes that a program needs in addition to its inputs and constants.

    arena       intermediate results and workspaces, while they are live
    results     results that do not overwrite an input; the next call reuses their memory if they were released
    """

    arena: int
    results: int

    @property
    def peak(self) -> int:
        return self.arena + self.results


@final
class Explanation:
    """The passes, kernels and memory of a compiled graph. `str` is readable; sizes are in bytes.

    passes      effects of each pass
    groups      fusion groups: clusters of ops, and single ops
    fused       loops over a cluster of ops, per step
    sums        loops that add partial sums, per step
    products    BLAS calls, per step
    by_hand     ops with hand-written loops, one or several each, per step, by op
    host        ops computed by eager_cpu, per step, by op
    kernels     all steps of machine code, per step of the program
    distinct    different kernels generated for this program
    memory      planned memory
    unfused     planned memory if every op ran by itself
    """

    def __init__(self, plan: CpuPlan, passes: Notes):
        kinds: Counter[tuple[str, str]] = Counter()
        texts: set[LoopSource] = set()
        self.passes = passes
        self.groups = _count(plan, kinds, texts, 1)
        self.fused = kinds["fused", ""]
        self.sums = kinds["sum", ""]
        self.products = kinds["product", ""]
        self.by_hand = _named("by hand", kinds)
        self.host = _named("host", kinds)
        self.kernels = kinds["kernel", ""]
        self.distinct = len(texts)
        self.memory = MemoryUse(plan.arena_bytes, plan.result_bytes)
        self.unfused = MemoryUse(_unfused(plan), plan.result_bytes)

    def __str__(self) -> str:
        rows: list[tuple[str, int | str]] = [("fused loops", self.fused), ("sums over parts", self.sums)]
        rows += [("products", self.products), *self.by_hand.items()]
        rows += [(f"{name} (left to eager_cpu)", n) for name, n in self.host.items()]
        lines = [str(self.passes), f"done in {_plural(self.groups, 'fusion group')}", ""]
        lines += [f"{_plural(self.kernels, 'kernel')} per step, {self.distinct} different ones generated"]
        lines += [f"  {what:32} {n:>8,}" for what, n in rows if n]
        lines += [
            "",
            f"peak memory {show_bytes(self.memory.peak)}, {show_bytes(self.unfused.peak)} if nothing were fused",
        ]
        lines += [f"  {what:32} {show_bytes(n):>8}" for what, n in self.memory._asdict().items()]
        return "\n".join(lines)

    __repr__ = __str__


def explain(graph: Graph, options: Options | None = None, donated: Collection[int] = ()) -> Explanation:
    """Explain how a graph is compiled, if the inputs at the positions `donated` may be overwritten.

    Raises UsageError for a graph with symbolic sizes or fractions, and for a device without a planner.
    """
    if options is not None and options.device != "cpu":
        raise UsageError(
            f"option device: expected 'cpu', got {options.device!r}; a plan for another device is not supported. "
            "Leave the option out"
        )
    if graph.is_exact:
        raise UsageError(
            "a graph of fractions is not supported: it is replayed op by op, without a plan; record it in floats"
        )
    for name, type_ in zip(graph.input_names, graph.input_types):
        if not all(isinstance(n, int) for n in type_.shape):
            raise UsageError(
                f"input {name}: expected a number for every size, got {type_}; a plan for symbolic sizes is not "
                "supported. Record the graph with numbers"
            )
    optimised, notes = optimise(graph)
    return Explanation(CpuPlan(optimised.body, donated=donated), notes)


# Kernels --------------------------------------------------------------------------------------------------------------


def _count(plan: CpuPlan, kinds: Counter[tuple[str, str]], texts: set[LoopSource], times: int) -> int:
    """Count the steps of a plan that runs `times` times; return the number of its groups, including those of its
    loops."""
    groups, before = len(plan.groups), -1
    for step in plan.steps:
        first, before = step.group != before, step.group
        if isinstance(step, ControlStep):  # each body once where the number of iterations is unknown
            iterations = int(step.equation.static.get("length", 1))
            groups += sum(_count(plan, kinds, texts, times * iterations) for plan in step.plans)
        elif isinstance(step, HostStep):
            kinds["host", step.equation.primitive.name] += times
        else:
            kinds["kernel", ""] += times
            kind = _kind(plan, step, first)
            if first or kind[0] == "sum":
                kinds[kind] += times
            if isinstance(step.loop.kernel, LoopSource):
                texts.add(step.loop.kernel)
    return groups


def _kind(plan: CpuPlan, step: NativeStep, first: bool) -> tuple[str, str]:
    group = plan.groups[step.group]
    if group.cluster is not None:
        return ("fused" if first else "sum"), ""
    primitive = group.equations[0].primitive
    return ("product", "") if primitive in PRODUCTS else ("by hand", primitive.name)


def _named(kind: str, kinds: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {name: n for (its, name), n in sorted(kinds.items()) if its == kind}


def _plural(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


# Memory ---------------------------------------------------------------------------------------------------------------


def _unfused(plan: CpuPlan) -> int:
    """Return the arena size of the same equations with one group each; views and workspaces are unchanged."""
    lowered = plan.lowered
    position = {e.outputs: i for i, e in enumerate(lowered.equations)}
    workspaces = _workspaces(plan, position)
    made = {slot: i for i, e in enumerate(lowered.equations) for slot in e.outputs}
    last: dict[int, int] = dict(made)
    for i, e in enumerate(lowered.equations):
        for slot in e.inputs:
            for root in _memories(lowered, slot):
                last[root] = i
    first = dict(made)
    for slot, part in lowered.parts.items():
        first[part.whole] = min(first[part.whole], made[slot])
    stored = [slot for slot in made if slot not in plan.results and slot not in lowered.parts]
    items = [Item(slot, max(1, int(lowered.types[slot].nbytes)), first[slot], last[slot]) for slot in stored]
    return arrange([*items, *workspaces])[1]


def _memories(lowered: Lowered, slot: int) -> Iterable[int]:
    """The slots whose memory must live while a slot is read: its root, and the concatenations that hold it."""
    if slot in lowered.literals:
        return
    root: int | None = lowered.views[slot].root
    while root is not None:
        yield root
        part = lowered.parts.get(root)
        root = None if part is None else part.whole


def _workspaces(plan: CpuPlan, position: Mapping[tuple[int, ...], int]) -> list[Item]:
    items: dict[Any, Item] = {}
    for step in plan.steps:
        group = plan.groups[step.group]
        if group.cluster is not None:
            continue
        at = position[group.equations[0].outputs]
        if isinstance(step, NativeStep):
            for word in step.loop.words:
                if isinstance(word, Scratch):
                    items[at, word.key] = Item((at, word.key), word.room, at, at)
        elif isinstance(step, ControlStep):
            largest = max(_unfused(inner) for inner in step.plans)
            carries = 2 * sum(int(type_.nbytes) for type_ in carried(step).values())
            items[at, ""] = Item((at, ""), largest + carries, at, at)
    return list(items.values())
