"""What a record of `against_peers` says: tables of times, ratios, first steps and memory, and their geometric means.

A ratio is the peer's figure over ours: above 1 we are the faster one, or the one with less memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = ("opstage_eager", "opstage_compiled")
PEERS = ("torch_eager", "torch_compile", "jax_jit")
SIDES = (*OURS, *PEERS)
BEST = "best peer"
RESULTS = Path(__file__).parent / "results"

Record = Mapping[str, Any]
Entry = Mapping[str, Any]
Row = Sequence[str]

_WIDTH = 18
FIGURES = {
    "median_ms": "time of a step",
    "cold_first_step_s": "cold first step",
    "warm_first_step_s": "warm first step",
    "working_bytes": "working memory",
}
"""Of a side on a workload, and what the tables call them."""


def figure(entry: Entry, side: str, name: str = "median_ms") -> float | None:
    """A figure of one side, or of the best peer; None where it was not measured."""
    if side == BEST:
        found = [value for peer in PEERS if (value := figure(entry, peer, name)) is not None]
        return min(found, default=None)
    of_side = entry.get(side) or {}
    value = of_side.get(name)
    return None if value is None else float(value)


def ratio(entry: Entry, ours: str, peer: str, name: str = "median_ms") -> float | None:
    """The peer's figure over ours."""
    mine, theirs = figure(entry, ours, name), figure(entry, peer, name)
    return theirs / mine if mine and theirs is not None else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there and above 0; None of none."""
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else None


def training(record: Record) -> dict[str, Any]:
    """The workloads that are training steps: a chain is not a program that anyone trains, and has no part in a mean."""
    return {name: entry for name, entry in record["workloads"].items() if not name.startswith("chain")}


# As text -------------------------------------------------------------------------------------------------------------


def heading(sides: Sequence[str]) -> str:
    return _text_row(["workload", *sides])


def line(name: str, entry: Entry, sides: Sequence[str]) -> str:
    """The times of one workload."""
    return _text_row([name, *(show(figure(entry, side), "median_ms") for side in sides)])


def summary(record: Record) -> list[str]:
    """Ratios of all figures, theirs over ours, with geometric means."""
    lines: list[str] = []
    for name, title in FIGURES.items():
        for ours in OURS:
            rows = list(ratio_rows(record, ours, name))
            if rows:
                lines += [f"{title}, peer / {ours}", _text_row(["", *PEERS, BEST])]
                lines += [*map(_text_row, rows), ""]
    for name in list(FIGURES)[1:]:
        lines += [FIGURES[name], *map(_text_row, figure_rows(record, name)), ""]
    return lines[:-1]


def ratio_rows(record: Record, ours: str, name: str = "median_ms") -> Iterator[Row]:
    """A row per workload that both have, then the geometric mean of the training steps."""
    workloads = {w: e for w, e in record["workloads"].items() if ratio(e, ours, BEST, name) is not None}
    for workload, entry in workloads.items():
        yield [workload, *(show_ratio(ratio(entry, ours, peer, name)) for peer in (*PEERS, BEST))]
    steps = training({"workloads": workloads}).values()
    if len(steps) > 1:
        means = [geometric_mean(ratio(e, ours, peer, name) for e in steps) for peer in (*PEERS, BEST)]
        yield ["geometric mean", *map(show_ratio, means)]


def figure_rows(record: Record, name: str) -> Iterator[Row]:
    """The sides, then a row per workload."""
    measured = [side for side in SIDES if any(figure(e, side) is not None for e in record["workloads"].values())]
    yield ["", *measured]
    for workload, entry in record["workloads"].items():
        yield [workload, *(show(figure(entry, side, name), name) for side in measured)]


def show(value: float | None, name: str) -> str:
    """A figure with its unit."""
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.0f} MB"
    if name.endswith("_s"):
        return f"{value:.2f} s"
    return f"{value:.2f} ms" if value < 100 else f"{value:.0f} ms"


def show_ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _text_row(cells: Row) -> str:
    first, *rest = cells
    return f"{first:<16}" + "".join(f"{cell:>{_WIDTH}}" for cell in rest)


# As Markdown ---------------------------------------------------------------------------------------------------------


def markdown(record: Record) -> str:
    """The tables of the guide: times and ratios, then first steps and memory; what was not measured is left out."""
    lines = [_about(record)]
    for title, names, rows in (
        ("Time of a training step in milliseconds (median):", ["median_ms"], _times),
        (
            "Time of the fastest peer divided by Opstage's; the geometric mean leaves out the chains:",
            ["median_ms"],
            _ratios,
        ),
        (
            "Time to the first step of a new process in seconds, with empty caches / with filled caches:",
            ["cold_first_step_s", "warm_first_step_s"],
            _first_steps,
        ),
        (
            "Peak GPU memory in MB:" if "gpu" in record else "Peak memory in MB, without that of the imports:",
            ["working_bytes"],
            _memory,
        ),
    ):
        entries = record["workloads"].values()
        if any(figure(entry, side, name) is not None for entry in entries for side in SIDES for name in names):
            lines += ["", title, "", *_table(rows(record))]
    return "\n".join(lines)


def _about(record: Record) -> str:
    about, packages = record["machine"], record["machine"]["packages"]
    gpu = f"{record['gpu']}, products in {record['precision']}; beside it " if "gpu" in record else ""
    versions = ", ".join(f"{name} {number}" for name, number in packages.items() if number)
    return (
        f"Measured on {gpu}{about['processor']}, {about['cores']} cores, with {versions}; "
        f"rounds: {record['rounds']}, each of {record['seconds_per_round']:g} s."
    )


def _times(record: Record) -> Iterator[Row]:
    yield ["workload", *(side.replace("_", " ") for side in SIDES)]
    for name, entry in record["workloads"].items():
        yield [f"`{name}`", *(show(figure(entry, side), "median_ms").removesuffix(" ms") for side in SIDES)]


def _ratios(record: Record) -> Iterator[Row]:
    yield ["workload", *(f"best peer / {ours.replace('_', ' ')}" for ours in OURS)]
    for name, entry in record["workloads"].items():
        yield [f"`{name}`", *(show_ratio(ratio(entry, ours, BEST)) for ours in OURS)]
    steps = training(record).values()
    yield ["geometric mean", *(show_ratio(geometric_mean(ratio(e, ours, BEST) for e in steps)) for ours in OURS)]


def _first_steps(record: Record) -> Iterator[Row]:
    return _per_side(record, ["cold_first_step_s", "warm_first_step_s"], lambda seconds: f"{seconds:.1f}")


def _memory(record: Record) -> Iterator[Row]:
    return _per_side(record, ["working_bytes"], lambda size: f"{size / 1e6:,.0f}")


def _per_side(record: Record, names: Sequence[str], text: Callable[[float], str]) -> Iterator[Row]:
    yield ["workload", *(side.replace("_", " ") for side in SIDES)]
    for name, entry in record["workloads"].items():
        cells = []
        for side in SIDES:
            values = [figure(entry, side, each) for each in names]
            known = any(value is not None for value in values)
            cells.append(" / ".join("-" if v is None else text(v) for v in values) if known else "-")
        yield [f"`{name}`", *cells]


def _table(rows: Iterator[Row]) -> list[str]:
    first, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return [first, "|---" * (first.count(" | ") + 1) + "|", *rest]
