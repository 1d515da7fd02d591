"""Sizes and indices computed from named dims: what a check says of every size is what happens at each.

Each op that takes a size gets expressions that are negative at some sizes, and each op that takes indices gets integers
that are out of range at some. The program is checked once, then run at every size that its constraint allows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, derived
from opstage.ops import dims
from opstage.ops.errors import OpstageError
from tests.property.test_symbolic_shapes import hopeless, witness_of
from tests.searches import share

FLOAT64 = Options(dtype="float64")
WHERE = ("", "T >= 0", "T >= 2", "T >= 3", "T <= 1", "T % 2 == 0", "T >= 0 T <= 2", "T == 4")
LARGEST = 6


def _row(ops: Any, x: Any, n: Any) -> Any:
    return ops.broadcast_to(ops.sum(x), shape=(n,))


def _counted(ops: Any, x: Any, n: Any) -> Any:
    return ops.scan(lambda ops, c, _: (c + 1.0, None), ops.sum(x), None, length=n)[0]


def _stacked(ops: Any, x: Any, n: Any) -> Any:
    return ops.scan(lambda ops, c, _: (c + 1.0, c), ops.sum(x), None, length=n)[1]


def _looped(ops: Any, x: Any, n: Any) -> Any:
    until = lambda ops, c: ops.less(c, ops.const(-1e9))  # noqa: E731
    return ops.while_loop(until, lambda ops, c: c + 1.0, ops.sum(x), max_iterations=n)


def _custom(ops: Any, x: Any, n: Any) -> Any:
    return ops.reshape(_row(ops, x, n * x.shape[0]), shape=(x.shape[0], n))


def _summed(ops: Any, x: Any, n: Any) -> Any:
    return derived.segment_sum(ops, x, ops.full(shape=x.shape, value=0, dtype="int64"), count=n)


def _resized(ops: Any, x: Any, n: Any) -> Any:
    return derived.resize(ops, ops.reshape(x, shape=(1, 1, x.shape[0])), size=(n,), mode="nearest")


SIZED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "full": lambda ops, x, n: ops.full(shape=(n,), value=1.0),
    "full_of_two": lambda ops, x, n: ops.full(shape=(n, n), value=1.0),
    "full_beside": lambda ops, x, n: ops.full(shape=(2, n), value=1.0),
    "iota": lambda ops, x, n: ops.iota(shape=(n,)),
    "broadcast_to": _row,
    "rand_uniform": lambda ops, x, n: ops.rand_uniform(shape=(n,)),
    "rand_normal": lambda ops, x, n: ops.rand_normal(shape=(n, 2)),
    "bernoulli_mask": lambda ops, x, n: ops.bernoulli_mask(ops.const(0.5), shape=(n,)),
    "eye": lambda ops, x, n: derived.eye(ops, n),
    "eye_of_two": lambda ops, x, n: derived.eye(ops, 3, n),
    "one_hot": lambda ops, x, n: derived.one_hot(ops, ops.const(np.zeros(2, np.int64)), classes=n),
    "tile": lambda ops, x, n: derived.tile(ops, x, repeats=(n,)),
    "arange": lambda ops, x, n: derived.arange(ops, n),
    "reshape": lambda ops, x, n: ops.reshape(x, shape=(n, -1)),
    "reshape_all": lambda ops, x, n: ops.reshape(x, shape=(n, x.shape[0])),
    "reshape_made": _custom,
    "slice": lambda ops, x, n: ops.slice(x, axis=0, start=0, length=n),
    "slice_from": lambda ops, x, n: ops.slice(x, axis=0, start=n, length=1),
    "slice_step": lambda ops, x, n: ops.slice(x, axis=0, start=0, length=n, step=2),
    "split": lambda ops, x, n: list(ops.split(x, sizes=(n, x.shape[0] - n))),
    "pad": lambda ops, x, n: ops.pad(x, padding=[(n, 1)]),
    "pad_reflect": lambda ops, x, n: derived.pad(ops, x, padding=[(n, 0)], mode="reflect"),
    "scan": _counted,
    "scan_ys": _stacked,
    "while_loop": _looped,
    "top_k": lambda ops, x, n: derived.top_k(ops, x, k=n)[0],
    "bincount": lambda ops, x, n: derived.bincount(ops, ops.const(np.zeros(0, np.int64)), size=n),
    "segment_sum": _summed,
    "unique": lambda ops, x, n: derived.unique(ops, ops.full(shape=(2,), value=1.0), size=n)[0],
    "nonzero": lambda ops, x, n: derived.nonzero(ops, ops.less(x, x), size=n)[0],
    "irfft": lambda ops, x, n: ops.irfft(ops.full(shape=(3, 2), value=1.0), n=n),
    "resize": _resized,
    "tril": lambda ops, x, n: derived.tril(ops, ops.full(shape=(2, 2), value=1.0), k=n),
    "gather_row": lambda ops, x, n: ops.gather_row(x, index=n),
    "scatter_add_vec": lambda ops, x, n: ops.scatter_add_vec(x, ops.const(1.0), n),
    "const": lambda ops, x, n: ops.full(shape=(), value=n, dtype="int64"),
}
EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "T": lambda t: t,
    "T-1": lambda t: t - 1,
    "T-2": lambda t: t - 2,
    "2-T": lambda t: 2 - t,
    "T//2-1": lambda t: t // 2 - 1,
    "T//2": lambda t: t // 2,
    "T%2": lambda t: t % 2,
    "T%2-1": lambda t: t % 2 - 1,
    "(T-1)*(T-3)": lambda t: (t - 1) * (t - 3),
    "T*T-T-2": lambda t: t * t - t - 2,
    "min(T,3)-2": lambda t: dims.minimum(t, 3) - 2,
    "max(T,2)-2": lambda t: dims.maximum(t, 2) - 2,
    "3-max(T,2)": lambda t: 3 - dims.maximum(t, 2),
    "-T": lambda t: -t,
    "5": lambda t: 5,
    "-1": lambda t: -1,
}

INDICES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "iota": lambda ops, i, t: i,
    "iota+1": lambda ops, i, t: i + 1,
    "iota-1": lambda ops, i, t: i - 1,
    "T-iota": lambda ops, i, t: t - i,
    "T-1-iota": lambda ops, i, t: t - 1 - i,
    "2*iota": lambda ops, i, t: 2 * i,
    "-iota": lambda ops, i, t: -1 * i,
    "iota+T": lambda ops, i, t: i + t,
    "iota-T": lambda ops, i, t: i - t,
    "iota*T": lambda ops, i, t: i * t,
    "min(iota+1,T-1)": lambda ops, i, t: ops.minimum(i + 1, t - 1),
    "max(iota-1,0)": lambda ops, i, t: ops.maximum(i - 1, 0),
    "max(iota-1,1)": lambda ops, i, t: ops.maximum(i - 1, 1),
    "iota+iota": lambda ops, i, t: i + i,
    "iota-iota": lambda ops, i, t: i - i,
    "iota of T": lambda ops, i, t: ops.slice(i, axis=0, start=0, length=t),
    "broadcast": lambda ops, i, t: ops.reshape(ops.broadcast_to(i + 1, shape=(2, *i.shape)), shape=(-1,)),
}
LENGTHS: dict[str, Callable[[Any], Any]] = {
    "T": lambda t: t,
    "T-1": lambda t: t - 1,
    "T+1": lambda t: t + 1,
    "T//2": lambda t: t // 2,
    "1": lambda t: 1,
    "2": lambda t: 2,
}
READERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "gather_vec": lambda ops, x, i: ops.gather_vec(x, i),
    "gather_rows": lambda ops, x, i: ops.gather_rows(ops.unsqueeze(x, axis=1), i),
    "gather_zero": lambda ops, x, i: ops.gather_vec(x, i, mode="zero"),
    "take": lambda ops, x, i: derived.take(ops, ops.unsqueeze(x, axis=0), i, axis=1),
    "take_along_axis": lambda ops, x, i: derived.take_along_axis(ops, x, i, axis=0),
    "scatter_add_vec": lambda ops, x, i: ops.scatter_add_vec(x, ops.full(shape=i.shape, value=1.0), i),
    "index_add": lambda ops, x, i: derived.index_add(ops, x, i, ops.full(shape=i.shape, value=1.0), axis=0),
    "segment_sum": lambda ops, x, i: derived.segment_sum(ops, ops.full(shape=i.shape, value=1.0), i, count=x.shape[0]),
    "bincount": lambda ops, x, i: derived.bincount(ops, i, size=x.shape[0]),
    "cross_entropy": lambda ops, x, i: ops.cross_entropy(ops.broadcast_to(x, shape=(*i.shape, *x.shape)), i),
    "subscript": lambda ops, x, i: x[i],
    "gather_nd": lambda ops, x, i: derived.gather_nd(ops, x, ops.unsqueeze(i, axis=1)),
    "scatter_nd": lambda ops, x, i: derived.scatter_nd(
        ops, x, ops.unsqueeze(i, axis=1), ops.full(shape=i.shape, value=1.0)
    ),
}


BY_ELEMENTS = ("unique", "segment_sum")
"""Whether these fail depends on the elements of a tensor too."""
ANOTHER_MEANING: dict[str, Callable[[Any], bool]] = {"reshape_all": lambda n: n == -1, "pad_reflect": lambda n: n <= 0}
"""Numbers that mean something else than a size: a check refuses them of named sizes."""


class Case(NamedTuple):
    """must_find   whether a failure at any size must be found
    excused     sizes at which a run need not fail though the check says so
    """

    name: str
    program: Callable[[Any, Any], Any]
    where: tuple[str, ...]
    must_find: bool
    excused: Callable[[int], bool] = lambda t: False


def sized_cases() -> list[Case]:
    def case(op: str, size: str, where: str) -> Case:
        expression, excused = EXPRESSIONS[size], ANOTHER_MEANING.get(op, lambda n: False)
        return Case(
            f"{op}({size}) where {where}",
            lambda ops, x: SIZED[op](ops, x, expression(x.shape[0])),
            _constraints(where),
            op not in BY_ELEMENTS,
            lambda t: excused(expression(t)),
        )

    return [case(op, size, where) for op in SIZED for size in EXPRESSIONS for where in WHERE]


def _constraints(where: str) -> tuple[str, ...]:
    return tuple(["T" + part for part in where.split("T") if part.strip()])


def indexed_cases() -> list[Case]:
    def program(reader: str, index: str, length: str) -> Callable[[Any, Any], Any]:
        def run(ops: Any, x: Any) -> Any:
            counts = ops.iota(shape=(LENGTHS[length](x.shape[0]),))
            return READERS[reader](ops, x, INDICES[index](ops, counts, x.shape[0]))

        return run

    return [
        Case(f"{reader}({index} of {length}) where {where}", program(reader, index, length), _constraints(where), False)
        for reader in READERS
        for index in INDICES
        for length in LENGTHS
        for where in WHERE
    ]


def fails(case: Case, size: int) -> bool:
    try:
        opstage.run(case.program, np.ones(size), options=FLOAT64)
    except (OpstageError, ZeroDivisionError):
        return True
    return False


def wrong(case: Case) -> str:
    """What a check says wrongly about a case; "" if all is right."""
    allowed = [t for t in range(LARGEST + 1) if all(eval(w, {"T": t}) for w in case.where) and (t or _zero(case.where))]
    report = opstage.check(case.program, Spec("T", where=case.where), options=FLOAT64)
    failing = [t for t in allowed if case.excused(t) or fails(case, t)]
    if report.ok:
        open_ = [t for t in allowed if any(c.holds is not None and not c.holds({"T": t}) for c in report.conditions)]
        if case.must_find and [t for t in failing if fails(case, t)] != open_:
            return f"{case.name}: ok with {[*map(str, report.conditions)]}, but fails at T in {failing}"
        return ""
    reason = report.errors[0].reason
    if any(why in reason for why in ("not decided", "symbolic", "must be a number", "must be an integer")):
        return ""  # a refusal that says why
    at = witness_of(reason).get("T")
    if at is not None and not (case.excused(at) or fails(case, at)):
        return f"{case.name}: runs at T={at}: {reason}"
    if hopeless(reason) and len(failing) < len(allowed):
        return f"{case.name}: runs at T in {sorted(set(allowed) - set(failing))}: {reason}"
    return "" if failing or at is not None or not allowed else f"{case.name}: never fails: {reason}"


def _zero(where: tuple[str, ...]) -> bool:
    return "T >= 0" in where


def search(cases: list[Case], count: int) -> None:
    chosen = random.Random(0).sample(cases, min(count, len(cases)))
    found = [text for case in chosen if (text := wrong(case))]
    assert not found, f"{len(found)} of {len(chosen)} cases: " + "\n".join(found[:20])


def test_sizes_are_required_where_runs_require_them() -> None:
    search(sized_cases(), 80)


def test_indices_are_checked_where_their_ends_are_known() -> None:
    search(indexed_cases(), 80)


@pytest.mark.parametrize("cases", [sized_cases, indexed_cases], ids=["sizes", "indices"])
@pytest.mark.slow
@pytest.mark.soak
def test_many_more(cases: Callable[[], list[Case]]) -> None:
    every = cases()
    search(every, share(len(every)))
