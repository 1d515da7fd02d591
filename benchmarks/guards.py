"""The price of guards: what a compiled program read of Python's state is compared in every call.

A call is timed beside the same call with nothing compared, in turns; `with` and `without` are the medians, `added` is
the median of the differences. `guard` is the comparison by itself, the best of many, which is held to the limit: in a
long step `added` is lost in the noise. The models take a step of as few rows as they can, for which Python counts
most. Below them stand programs of one op that read 1, 10, 100 or 1000 places of a kind; their guard should be linear in
that.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import opstage
from benchmarks.against_peers import machine
from benchmarks.choices import names_of, positive
from benchmarks.programs import shipped_step
from benchmarks.recording import growth
from benchmarks.report import RESULTS
from opstage import Options
from opstage.compiler.captures import Guard
from opstage.models import model

MODELS: dict[str, dict[str, int]] = {
    "mlp": {"B": 1},
    "cnn": {"B": 1},
    "lstm": {"B": 1},
    "vae": {"B": 1},
    "gpt": {"B": 1, "T": 2},
}
PLACES = (1, 10, 100, 1000)
LIMIT_US = 2.0  # of the guard of a usual program

_SECONDS = 0.2  # of the guard by itself
_OPTIONS = Options(backend="compiled")

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", type=names_of(MODELS), default=list(MODELS), metavar="A,B")
    parser.add_argument("--kinds", type=names_of(KINDS), default=list(KINDS), metavar="A,B", help="of places")
    parser.add_argument("--most", type=positive(int), default=PLACES[-1], metavar="N", help="leave more places out")
    parser.add_argument("--rounds", type=positive(int), default=200, metavar="N", help="calls of each side (200)")


def main(given: argparse.Namespace) -> None:
    print(f"{'':24}{'places':>8}{'with':>14}{'without':>14}{'added':>12}{'guard':>12}{'per place':>14}")
    models: list[Row] = []
    for name in given.models:
        step = shipped_step(model(name), MODELS[name], _OPTIONS)
        models.append({"name": f"{name}, a step", **measure(step, given.rounds)})
        print(line(models[-1]), flush=True)
    reads: list[Row] = []
    for kind in given.kinds:
        for places in [n for n in PLACES if n <= given.most] or [given.most]:
            reads.append({"name": kind, **measure(reading(kind, places)[0], given.rounds), "places": places})
            print(line(reads[-1]), flush=True)
    grown = {kind: power(reads, kind) for kind in given.kinds}
    said = [f"{kind} {value:.2f}" for kind, value in grown.items() if value is not None]
    if said:
        print("grows as the places to the power of: " + ", ".join(said))
    if models:
        most = max(row["guard_us"] for row in models)
        print(
            f"models {'within' if most <= LIMIT_US else 'OVER'} the limit of {LIMIT_US:.0f} µs: {most:.2f} µs at most"
        )
    if (given.models, given.kinds, given.most) == (list(MODELS), list(KINDS), PLACES[-1]):
        RESULTS.mkdir(exist_ok=True)
        whole = {"machine": machine(), "models": models, "reads": reads, "powers": grown}
        (RESULTS / "guards.json").write_text(json.dumps(whole, indent=1) + "\n")


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    times = (
        f"{row['with_us']:>11.1f} µs{row['without_us']:>11.1f} µs{row['added_us']:>9.2f} µs{row['guard_us']:>9.2f} µs"
    )
    return f"{row['name']:24}{row['places']:>8}{times}{1e3 * row['guard_us'] / row['places']:>11.1f} ns"


def power(rows: Sequence[Row], kind: str) -> float | None:
    """Of the number of places of a kind, with which the guard grows."""
    return growth([{"n": row["places"], **row} for row in rows if row["name"] == kind], "guard_us")


def measure(call: Callable[[], Any], rounds: int) -> Row:
    """The figures of a call, whose first one compiles its program; `places` are those that it compares."""
    call()
    guards = guards_of(call)
    both: tuple[list[float], list[float]] = [], []
    gc.collect()
    for i in range(rounds):
        for side in (i % 2, 1 - i % 2):  # either is the first as often
            with compared(side == 0):
                both[side].append(_timed(call))
    return {
        "places": sum(len(guard.slots) for guard in guards),
        "with_us": 1e6 * statistics.median(both[0]),
        "without_us": 1e6 * statistics.median(both[1]),
        "added_us": 1e6 * statistics.median(a - b for a, b in zip(*both)),
        "guard_us": 1e6 * sum(map(_alone, guards)),
    }


def guards_of(call: Callable[[], Any]) -> list[Guard]:
    """Those by which a call decides that nothing has changed."""
    asked: list[Guard] = []
    before = Guard.holds

    def holds(guard: Guard) -> bool:
        asked.append(guard)
        return before(guard)

    with _holding(holds):
        call()
    return asked


def compared(really: bool) -> Any:
    """`with compared(False):` no guard compares anything."""
    return _holding(Guard.holds if really else lambda guard: True)


@contextmanager
def _holding(holds: Callable[[Guard], bool]) -> Iterator[None]:
    before = Guard.holds
    Guard.holds = holds  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Guard.holds = before  # type: ignore[method-assign]


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _alone(guard: Guard) -> float:
    """The fewest seconds of a comparison."""
    count = max(1, int(1e-4 / max(_timed(guard.holds), 1e-7)))  # a turn takes about 0.1 ms
    turns, best = range(count), float("inf")
    stop = time.perf_counter() + _SECONDS
    while time.perf_counter() < stop:
        start = time.perf_counter()
        for _ in turns:
            guard.holds()
        best = min(best, (time.perf_counter() - start) / count)
    return best


# Programs that read so many places -----------------------------------------------------------------------------------


def _globals(n: int) -> Any:
    return {f"a{i}": 0.5 for i in range(n)}, [f"a{i}" for i in range(n)]


def _attributes(n: int) -> Any:
    holder = Holder()
    for i in range(n):
        setattr(holder, f"a{i}", 0.5)
    return {"held": holder}, [f"held.a{i}" for i in range(n)]


def _elements(n: int) -> Any:
    return {"held": [0.5] * n}, ["sum(held)"]


def _arrays(n: int) -> Any:
    return {f"a{i}": np.full(4, 0.5) for i in range(n)}, [f"a{i}[0]" for i in range(n)]


class Holder:
    """Of attributes."""


KINDS: dict[str, Callable[[int], tuple[dict[str, Any], Sequence[str]]]] = {
    "globals": _globals,
    "attributes": _attributes,
    "elements": _elements,
    "arrays": _arrays,
}
"""What n places hold, by the names that the program has for them, and what it reads."""


def reading(kind: str, places: int) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A call of a compiled program of one op that reads so many places of a kind, and what these hold, by name."""
    names, reads = KINDS[kind](places)
    lines = "".join(f"    total += {read}\n" for read in reads)
    text = f"def program(ops, x):\n    total = 0.0\n{lines}    return ops.scale(x, c=float(total))\n"
    exec(compile(text, __file__, "exec"), names)  # a program's own file, so what it reads is looked at
    program, x = names["program"], np.ones(4, np.float32)
    return lambda: opstage.run(program, x, options=_OPTIONS), names
