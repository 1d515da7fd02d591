"""Places that are cut off, taken modulo a number or found by a sort: what is read at them, and masks made of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import opstage
from opstage import Spec, derived
from tests.analysis.dependence.test_reading_enemies import found_wrong, ints, normal

Program = Callable[..., Any]
Places = Callable[[Any, Any], Any]
"""(ops, the places 0 … 7) -> other places, or a mask."""
N = 8


def number(ops: Any, value: int, count: int = N) -> Any:
    return ops.full(shape=(count,), value=value, dtype="int64")


def places(ops: Any, count: int = N) -> Any:
    return ops.iota(shape=(count,), axis=0)


def read(place: Places, ops: Any, x: Any, mode: str = "raise") -> Any:
    """Rows of x at places."""
    return ops.gather_rows(x, place(ops, places(ops)), mode=mode)


def kept(mask: Places, ops: Any, x: Any) -> Any:
    """x where a mask of places holds, else 0."""
    return ops.select(mask(ops, places(ops)), x, 0 * x)


def cut(ops: Any, at: Any, low: int = 0, high: int = N - 1) -> Any:
    return ops.minimum(ops.maximum(at, number(ops, low)), number(ops, high))


def clamped(ops: Any, at: Any, low: int, high: int) -> Any:
    return ops.cast(ops.clamp(real(ops, at), lo=low, hi=high), dtype="int64")


def real(ops: Any, at: Any) -> Any:
    return ops.cast(at, dtype="float64")


def cut_real(ops: Any, at: Any) -> Any:
    ends = (ops.full(shape=(N,), value=end) for end in (0.0, N - 1.0))
    return ops.cast(ops.minimum(ops.maximum(at, next(ends)), next(ends)), dtype="int64")


def wrapped(ops: Any, i: Any) -> Any:
    """0, -2**31, 0, … in int32, cut off at 5."""
    at = ops.cast(i, dtype="int32")
    most, one, five = (ops.full(shape=(N,), value=v, dtype="int32") for v in (2**31 - 1, 1, 5))
    return ops.cast(ops.maximum(ops.minimum(at * 0 + most, most) + one + at, five), dtype="int64")


READ: dict[str, Places] = {
    "the place before": lambda ops, i: cut(ops, i - 1),
    "the place behind": lambda ops, i: cut(ops, i + 1),
    "places turned and cut": lambda ops, i: cut(ops, 5 - i),
    "places cut far off": lambda ops, i: cut(ops, i * 3 - 9),
    "every second place": lambda ops, i: cut(ops, 2 * i),
    "cut in the other order": lambda ops, i: ops.maximum(ops.minimum(i - 2, number(ops, 3)), number(ops, 1)),
    "clamped": lambda ops, i: clamped(ops, i - 3, 0, 5),
    "clamped to one number": lambda ops, i: clamped(ops, i, 5, 5),
    "the greater of two places": lambda ops, i: ops.maximum(i, number(ops, N - 1) - i),
    "modulo a number": lambda ops, i: ops.mod(i * 5, number(ops, N)),
    "what is left of a place": lambda ops, i: i - ops.mod(i, number(ops, 3)),
    "of a place below 0": lambda ops, i: ops.mod(i - 20, number(ops, 5)),
    "counted places": lambda ops, i: ops.cumsum(number(ops, 1), axis=0) - 1,
    "counted from the end": lambda ops, i: ops.cumsum(number(ops, 1), axis=0, reverse=True, exclusive=True),
    "a place and a half, as a whole number": lambda ops, i: cut_real(ops, real(ops, i) - 1.5),
    "the floor of a place and a half": lambda ops, i: cut_real(ops, ops.floor(real(ops, i) + 1.5)),
}
KEPT: dict[str, Places] = {
    "counted by threes": lambda ops, i: ops.cumsum(number(ops, 3), axis=0, exclusive=True) < number(ops, 10),
    "a cut window": lambda ops, i: cut(ops, i - 2, 0, 3) < number(ops, 3),
    "less than half a place more": lambda ops, i: real(ops, i) < real(ops, i * 0) + 3.5,
    "more than half a place less": lambda ops, i: real(ops, i * 0) + 2.5 <= real(ops, i) - 0.5,
    "a remainder that is small": lambda ops, i: ops.mod(i, number(ops, 3)) < number(ops, 3),
    "a remainder that is 1": lambda ops, i: ops.equal(ops.mod(i, number(ops, 3)), number(ops, 1)),
    "a remainder that is below 2": lambda ops, i: ops.logical_not(ops.mod(i, number(ops, 3)) < number(ops, 2)),
}


def flat(remainder: Callable[[Any, Any], Any], ops: Any, x: Any) -> Any:
    """Entries of a matrix of 4 rows of 3 that is laid out flat."""
    return ops.gather_vec(ops.reshape(x, shape=(12,)), places(ops, 4) * 3 + remainder(ops, places(ops, 4)))


def best(ops: Any, x: Any, y: Any) -> Any:
    return derived.take_along_axis(ops, y, ops.unsqueeze(ops.argmax(x, axis=1), axis=1), axis=1)


PROGRAMS: dict[str, tuple[Program, list[Any]]] = {
    **{name: (partial(read, place), [normal(N, 2)]) for name, place in READ.items()},
    **{name: (partial(kept, mask), [normal(N)]) for name, mask in KEPT.items()},
    "clamped between whole numbers": (
        lambda ops, x: ops.select(ops.clamp(real(ops, places(ops)), lo=0.5, hi=2.5) < 0 * x + 1, x, 0 * x), [normal(N)]
    ),
    "data modulo a number": (
        lambda ops, x, at: ops.gather_rows(x, ops.mod(at, number(ops, 4, 5))), [normal(N, 2), ints(-7, 3, 12, 5, 0)]
    ),
    "rows that are not there": (
        partial(read, lambda ops, i: ops.minimum(i - 3, number(ops, 2)), mode="zero"), [normal(N, 2)]
    ),
    "sorted rows": (lambda ops, x: derived.sort(ops, x, axis=1)[0], [normal(4, 3)]),
    "sorted columns": (lambda ops, x: derived.sort(ops, x, axis=0)[0], [normal(4, 3)]),
    "sorted in the middle": (lambda ops, x: derived.sort(ops, x, axis=1)[0], [normal(2, 4, 3)]),
    "the best of each row": (lambda ops, x: best(ops, x, x), [normal(4, 3)]),
    "others' best": (best, [normal(4, 3), normal(4, 3)]),
    "the middle of three": (lambda ops, x: derived.median(ops, x, axis=1), [normal(4, 3)]),
    "a sum that wraps around": (partial(read, wrapped, mode="zero"), [normal(N, 2)]),
    "flat places beyond a row": (partial(flat, lambda ops, i: 3 - ops.mod(i, number(ops, 4, 4))), [normal(4, 3)]),
    "flat places in a row": (partial(flat, lambda ops, i: 2 - ops.mod(i, number(ops, 3, 4))), [normal(4, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_and_masks_read_what_their_facts_say(name: str) -> None:
    assert found_wrong(*PROGRAMS[name]) == []


# Random places --------------------------------------------------------------------------------------------------------


def random_place(rng: random.Random, depth: int) -> Callable[[Any, Any], Any]:
    """A place made of the place and of numbers."""
    if depth == 0:
        c = rng.randint(-4, 9)
        return rng.choice([lambda ops, i: i, lambda ops, i: number(ops, c)])
    a, b = (random_place(rng, rng.randrange(depth)) for _ in range(2))
    c = rng.randint(1, 9)
    return rng.choice(
        [
            lambda ops, i: ops.maximum(a(ops, i), b(ops, i)),
            lambda ops, i: ops.minimum(a(ops, i), b(ops, i)),
            lambda ops, i: a(ops, i) + b(ops, i),
            lambda ops, i: a(ops, i) - b(ops, i),
            lambda ops, i: a(ops, i) * (c - 5),
            lambda ops, i: ops.mod(a(ops, i), number(ops, c)),
            lambda ops, i: clamped(ops, a(ops, i), c - 6, c),
            lambda ops, i: -a(ops, i),
        ]
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_places_read_what_their_facts_say(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        place, other = random_place(rng, 3), random_place(rng, 2)
        compare = rng.choice(["less", "less_equal", "equal"])

        def program(ops: Any, x: Any, place: Any = place, other: Any = other, compare: str = compare) -> Any:
            at = place(ops, places(ops))
            mask = getattr(ops, compare)(at, other(ops, places(ops)))
            return [ops.gather_rows(x, at, mode="zero"), ops.select(mask, x, 0 * x)]

        assert found_wrong(program, [normal(N)]) == []


# Claims ---------------------------------------------------------------------------------------------------------------

AT: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "the place before": (lambda ops, i, n: ops.maximum(i - 1, 0 * i), "proved"),
    "the place behind": (lambda ops, i, n: ops.minimum(i + 1, 0 * i + (n - 1)), "refuted"),
    "both": (lambda ops, i, n: ops.minimum(ops.maximum(i - 2, 0 * i), 0 * i + (n - 1)), "proved"),
    "less what is left of it": (lambda ops, i, n: i - ops.mod(i, 0 * i + 4), "proved"),
    "up to the next four": (lambda ops, i, n: ops.minimum(i - ops.mod(i, 0 * i + 4) + 3, 0 * i + (n - 1)), "refuted"),
}  # fmt: skip


@pytest.mark.parametrize("name", AT)
def test_claims_of_rows_at_places(name: str) -> None:
    place, state = AT[name]

    def program(ops: Any, x: Any) -> Any:
        return ops.gather_rows(x, place(ops, ops.iota(shape=(x.shape[0],), axis=0), x.shape[0]))

    (found,) = opstage.check(program, Spec("T 2", where=("T >= 1",)), claims=["causal:T"]).claims
    assert found.state == state, found
