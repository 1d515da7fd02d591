"""Single ops beside PyTorch's: CPU time of the sum of a result with its gradients, on one thread.

Each side runs alone in a process of its own with one thread, and the best of some rounds counts. Ratios are PyTorch's
time over ours, above 1 where ours is faster; * marks those under 0.5. An op whose weighted sum or gradients differ from
PyTorch's has no ratio but is named.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from typing import Any

from benchmarks.against_peers import machine
from benchmarks.choices import positive
from benchmarks.cpu_time import alone
from benchmarks.each_op.table import TABLE
from benchmarks.report import RESULTS, geometric_mean

OURS = ("eager", "compiled")
SIDES = ("torch", *OURS)
LOW = 0.5
CLOSE = 1e-3  # of the norm, in float32

Entries = Mapping[str, Mapping[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="say what there is, and measure nothing")
    parser.add_argument("--only", type=part_of, default=list(TABLE), metavar="WORD", help="ops with it in their name")
    parser.add_argument("--rounds", type=positive(int), default=4, metavar="N", help="of each op on each side (4)")


def part_of(word: str) -> list[str]:
    """The names of ops in which a word stands."""
    found = [name for name in TABLE if word in name]
    if not found:
        raise argparse.ArgumentTypeError(f"no op has {word!r} in its name; there are {', '.join(TABLE)}")
    return found


def main(given: argparse.Namespace) -> None:
    if given.list:
        print("\n".join(TABLE))
        return
    words = json.dumps(given.only), str(given.rounds)
    sides = {side: alone("benchmarks.each_op.side", side, *words) for side in SIDES}
    print(f"{'':26}{'torch ms':>10}{'eager':>9}{'compiled':>11}")
    rows: dict[str, dict[str, float]] = {}
    for name in given.only:
        entries = {side: sides[side][name] for side in SIDES}
        differs = None if TABLE[name].is_random else difference(entries)
        if differs is not None:
            print(f"{name:26}{differs}", flush=True)
        else:
            rows[name] = ratios(entries)
            print(line(name, rows[name]), flush=True)
    if not rows:
        raise SystemExit("no op could be measured")
    print(verdict(rows))
    if len(rows) < len(given.only):
        raise SystemExit(f"not measured: {', '.join(name for name in given.only if name not in rows)}")
    if given.only == list(TABLE):
        RESULTS.mkdir(exist_ok=True)
        whole = {"machine": machine(), "rounds": given.rounds, "threads": 1, "time": "CPU", "ops": rows}
        (RESULTS / "each_op.json").write_text(json.dumps(whole, indent=1) + "\n")


def difference(entries: Entries) -> str | None:
    """How a side's result or gradients differ from PyTorch's, if they do."""
    theirs = entries["torch"]["seen"]
    for side in OURS:
        for i, (a, b) in enumerate(zip(theirs, entries[side]["seen"], strict=True)):
            if not all(abs(x - y) <= CLOSE * a[0] for x, y in zip(a, b)):  # nan is not
                of = f"the gradient of argument {i}" if i else "the result"
                said = "has the norm {:.6g} and the product {:.6g}".format
                return f"DIFFERS: {of} {said(*a)} by PyTorch, {said(*b)} on {side}"
    return None


def ratios(entries: Entries) -> dict[str, float]:
    theirs = entries["torch"]["ms"]
    return {"torch_ms": theirs, **{f"{side}_ratio": theirs / entries[side]["ms"] for side in OURS}}


def line(name: str, row: Mapping[str, float]) -> str:
    """A row of the table, * behind a low ratio."""
    cells = [f"{row[f'{side}_ratio']:>8.2f}{'*' if row[f'{side}_ratio'] < LOW else ' '}" for side in OURS]
    return f"{name:26}{row['torch_ms']:>10.3f}{'  '.join(cells)}".rstrip()


def verdict(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Geometric means, and which ratios are low."""
    said = []
    for side in OURS:
        low = [name for name, row in rows.items() if row[f"{side}_ratio"] < LOW]
        mean = geometric_mean(row[f"{side}_ratio"] for row in rows.values()) or math.nan
        said.append(
            f"{side}: geometric mean {mean:.2f}, {len(low)} of {len(rows)} under {LOW} ({'; '.join(low) or 'none'})"
        )
    return "\n".join(said)
