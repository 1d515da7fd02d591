"""What loops carry: ranges of thousands of random loops beside what they carry when they run, and known recurrences."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.facts import ranges_of
from tests.analysis.ranges.test_ranges_of_ops import outside
from tests.searches import share

X = Spec("T 4", range=(-1, 2))


def zeros(ops: Any) -> Any:
    return ops.full(shape=(4,), value=0.0)


def over(step: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    """A scan of a step (ops, carry, entry) -> carry, of one tensor or of several."""

    def program(ops: Any, x: Any) -> Any:
        first = zeros(ops) if count == 1 else tuple([zeros(ops) for _ in range(count)])
        return ops.scan(lambda ops, c, e: (step(ops, c, e), ops.full(shape=(), value=0.0)), first, x)[0]

    return program


def lstm(ops: Any, carry: Any, e: Any) -> Any:
    h, c = carry
    c = ops.sigmoid(h + e) * c + ops.sigmoid(h - e) * ops.tanh(h * e)
    return ops.sigmoid(e) * ops.tanh(c), c


RECURRENCES: dict[str, tuple[Any, Any, list[tuple[float, float]]]] = {
    "moving average": (over(lambda ops, c, e: 0.9 * c + 0.1 * e), X, [(-2.01, 2.01)]),
    "second moments": (over(lambda ops, c, e: 0.999 * c + 0.001 * (e * e)), X, [(0, 4.01)]),
    "decay": (over(lambda ops, c, e: 0.5 * c + e), X, [(-4.01, 4.01)]),
    "running maximum": (over(lambda ops, c, e: ops.maximum(c, e)), X, [(0, 2.01)]),
    "running minimum": (over(lambda ops, c, e: ops.minimum(c, e)), X, [(-1.01, 0)]),
    "sum of so many": (over(lambda ops, c, e: c + e), Spec("1000 4", range=(-1, 2)), [(-2001, 2001)]),
    "sum of at most so many": (over(lambda ops, c, e: c + e), X.changed(where=("T <= 128",)), [(-257, 257)]),
    "count": (over(lambda ops, c, e: c + 1), X.changed(where=("T <= 128",)), [(0, 129)]),
    "count of any number": (over(lambda ops, c, e: c + 1), X, [(0, math.inf)]),
    "doubling": (over(lambda ops, c, e: c + c + e), Spec("40 4", range=(-1, 2)), [(-(2.0**42), 2.0**42)]),
    "lstm": (over(lstm, 2), Spec("100 4", range=(-1, 2)), [(-1, 1), (-101, 101)]),
    "mean of a mean": (
        over(lambda ops, cs, e: (0.9 * cs[0] + 0.1 * e, 0.5 * cs[1] + 0.5 * cs[0]), 2), X, [(-2.01, 2.01)] * 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENCES)
def test_a_recurrence_has_the_limit_that_is_worked_out_by_hand(name: str) -> None:
    program, spec, ends = RECURRENCES[name]
    found = ranges_of(opstage.check(program, spec))
    for (_, known), (low, high) in zip(found.outputs, ends, strict=True):
        assert low <= known.low and known.high <= high and not known.nan, found
    assert all(known.bounded for _, known in found.outputs) == (name != "count of any number")
    assert bool(found.findings) == (name == "count of any number")
    length = int(spec.entries[0]) if str(spec.entries[0]).isdigit() else 50
    last = opstage.run(program, np.full((length, 4), 2.0, np.float32))
    for (_, known), array in zip(found.outputs, last if isinstance(last, tuple) else [last]):
        assert outside(known, np.asarray(array)) == ""


def test_what_has_no_limit_is_noted_once_and_at_the_loop() -> None:
    found = ranges_of(opstage.check(over(lambda ops, c, e: c + e), X))
    (finding,) = found.findings
    assert finding.severity == "note" and "grows" in finding.reason


def test_an_exponential_that_is_tried_on_the_way_is_not_remarked() -> None:
    """While the carry is widened its exponential overflows; in the end it does not."""
    found = ranges_of(opstage.check(over(lambda ops, c, e: 0.5 * c + ops.exp(-(c * c)) * e), X))
    assert found.findings == () and found.safe


def test_an_exponential_of_what_is_carried_is_remarked() -> None:
    found = ranges_of(opstage.check(over(lambda ops, c, e: ops.exp(c) + e), X))
    assert "overflow" in [finding.rule for finding in found.findings]


def test_a_counter_that_wraps_around_has_no_limit() -> None:
    def program(ops: Any, x: Any) -> Any:
        first = ops.full(shape=(), value=2**31 - 10, dtype="int32")
        one = ops.full(shape=(), value=1, dtype="int32")
        return ops.scan(lambda ops, c, e: (c + one, c), first, x)

    known = ranges_of(opstage.check(program, Spec("100", range=(0, 1)))).outputs[0][1]
    last = opstage.run(program, np.zeros(100, np.float32))[0]
    assert int(last) < 0 and outside(known, np.asarray(last)) == ""


# Random loops ---------------------------------------------------------------------------------------------------------

UNARY: list[Callable[[Any, Any], Any]] = [
    lambda ops, x: ops.tanh(x),
    lambda ops, x: ops.sigmoid(x),
    lambda ops, x: ops.relu(x),
    lambda ops, x: ops.abs(x),
    lambda ops, x: -x,
    lambda ops, x: 0.5 * x,
    lambda ops, x: 0.99 * x,
    lambda ops, x: 1.5 * x,
    lambda ops, x: x * x,
    lambda ops, x: ops.cos(x),
    lambda ops, x: ops.exp(ops.minimum(x, 0)),
    lambda ops, x: x / (1 + ops.abs(x)),
    lambda ops, x: ops.log1p(ops.abs(x)),
    lambda ops, x: ops.broadcast_to(ops.reduce_mean(x, axis=0, keepdims=True), shape=(4,)),
    lambda ops, x: ops.broadcast_to(ops.reduce_max(x, axis=0, keepdims=True), shape=(4,)),
    lambda ops, x: ops.softmax(x, axis=0),
    lambda ops, x: ops.floor(x),
    lambda ops, x: ops.sqrt(ops.abs(x)),
]
BINARY: list[Callable[[Any, Any, Any], Any]] = [
    lambda ops, x, y: x + y,
    lambda ops, x, y: x - y,
    lambda ops, x, y: x * y,
    lambda ops, x, y: ops.sigmoid(y) * x,
    lambda ops, x, y: ops.maximum(x, y),
    lambda ops, x, y: ops.minimum(x, y),
    lambda ops, x, y: ops.select(ops.less(x, y), x, y * 0.5),
    lambda ops, x, y: 0.9 * x + 0.1 * y,
    lambda ops, x, y: x / (1 + y * y),
]


def drawn(rng: random.Random) -> tuple[Callable[..., Any], int, bool]:
    """A body of one to three carries, each made of a few ops on the carries and the entry."""
    count = rng.choice([1, 1, 2, 3])
    plan = []
    for _ in range(count):
        ops_ = [
            (rng.choice(BINARY), rng.randrange(9), rng.randrange(9))
            if rng.random() < 0.5
            else (rng.choice(UNARY), rng.randrange(9), -1)
            for _ in range(rng.choice([1, 2, 3, 4]))
        ]
        plan.append(ops_)

    def step(ops: Any, carry: Any, e: Any) -> Any:
        carries = [carry] if count == 1 else list(carry)
        new = []
        for at, ops_ in enumerate(plan):
            known = [carries[at], e, *carries]
            for function, i, j in ops_:
                x = known[-1 - i % len(known)]
                known.append(function(ops, x) if j < 0 else function(ops, x, known[-1 - j % len(known)]))
            new.append(known[-1])
        return new[0] if count == 1 else tuple(new)

    return step, count, rng.random() < 0.3


def escapes(seed: int, rounds: int) -> list[str]:
    """Random loops of which a run leaves the claimed ranges."""
    rng, found = random.Random(seed), []
    options = Options(dtype="float32")
    for at in range(rounds):
        step, count, reverse = drawn(rng)

        def program(ops: Any, x: Any, step: Any = step, count: int = count, reverse: bool = reverse) -> Any:
            first = zeros(ops) if count == 1 else tuple([zeros(ops) + 0.25 * i for i in range(count)])
            return ops.scan(lambda ops, c, e: (step(ops, c, e), c), first, x, reverse=reverse)

        length = rng.choice([30, 200])
        spec = rng.choice([X, X.changed(where=(f"T <= {length}",)), Spec((length, 4), range=(-1, 2))])
        ranges = ranges_of(opstage.check(program, spec)).outputs
        numbers = np.random.default_rng(seed * 1000 + at)
        sizes = [length] if spec.shape[0] == length else [1, 3, length]
        for size in sizes:
            for x in (numbers.uniform(-1, 2, (size, 4)), np.full((size, 4), 2.0), np.full((size, 4), -1.0)):
                with np.errstate(all="ignore"):
                    outs = opstage.run(program, x.astype(np.float32), options=options)
                arrays = [outs[0], outs[1]] if count == 1 else [*outs[0], *outs[1]]
                found += [
                    f"{seed}.{at} at {size}: {name} {wrong}"
                    for (name, known), array in zip(ranges, arrays, strict=True)
                    if (wrong := outside(known, np.asarray(array)))
                ]
    return found


def test_a_few_random_loops_stay_in_their_ranges() -> None:
    assert escapes(1, 12) == []


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 10 + share(30)))
def test_random_loops_stay_in_their_ranges(seed: int) -> None:
    assert escapes(seed, 100) == []
