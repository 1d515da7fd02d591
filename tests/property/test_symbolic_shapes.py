"""Programs on symbolic shapes: what one check says of every size is what happens at each size.

A random program is checked once, with named dims and constraints on them, and then run at sizes that satisfy the
constraints by plain Python arithmetic. Its ops need not fit: a check that refutes one must name sizes where it fails.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opstage
from opstage import Options, Spec
from opstage.interpreters.shape_check.report import Report
from opstage.ops.dims import evaluate
from opstage.ops.errors import OpstageError
from tests.searches import share

FLOAT64 = Options(dtype="float64")
NAMES = ("B", "T", "D")
AXES = [*NAMES, "1", "2", "3", "2*B", "T+1", "B*T", "D//2"]
CONSTRAINTS = [
    "B <= 4", "T >= 2", "T >= 4", "T % 2 == 0", "D == 3", "B <= T", "D == 2*B", "B == T", "D % 2 == 0", "D >= 3",
]  # fmt: skip

ENDS = ((1, 1, 1), (1, 23, 2), (17, 1, 30), (24, 24, 24), (12, 26, 24), (1, 2, 3), (4, 4, 8), (3, 9, 6))
"""The least and large sizes, in the order of NAMES."""

# Ops by how they change the rank: (rank of x) -> rank of the result, None where x does not fit. `k` is a small number.
Template = tuple[Callable[[int], int | None], Callable[..., Any]]


def _rank(least: int, change: int = 0, most: int = 3) -> Callable[[int], int | None]:
    return lambda rank: rank + change if least <= rank <= most else None


def _axis(x: Any, k: int) -> int:
    return k % len(x.shape)


def _sliced(ops: Any, x: Any, k: int, start: Any, length: Callable[[Any], Any], step: int = 1) -> Any:
    axis = _axis(x, k)
    return ops.slice(x, axis=axis, start=start, length=length(x.shape[axis]), step=step)


def _convolved(ops: Any, x: Any, k: int) -> Any:
    kernel = ops.full(shape=(2, x.shape[0], 3), value=0.5)
    return ops.conv(kernel, None, x, stride=1 + k % 2, padding=k % 2)


UNARY: dict[str, Template] = {
    "infix": (_rank(0), lambda ops, x, k: 2 * x - x * x + k / (4 + x * x)),
    "relu": (_rank(0), lambda ops, x, k: ops.relu(x)),
    "softmax": (_rank(1), lambda ops, x, k: ops.softmax(x, axis=_axis(x, k))),
    "layer_norm": (_rank(1), lambda ops, x, k: ops.layer_norm(x, None, None)),
    "over_size": (_rank(1), lambda ops, x, k: x * (1 / x.shape[0]) - x.shape[0] + x / x.shape[0]),
    "sum": (lambda rank: 0, lambda ops, x, k: ops.sum(x)),
    "reduce_mean": (_rank(1, -1), lambda ops, x, k: ops.reduce_mean(x, axis=_axis(x, k))),
    "reduce_max": (_rank(1), lambda ops, x, k: ops.reduce_max(x, axis=_axis(x, k), keepdims=True)),
    "transpose": (_rank(2, most=2), lambda ops, x, k: ops.transpose2d(x)),
    "swap": (_rank(3), lambda ops, x, k: ops.swap_adjacent_at_depth(x, depth=k % 2)),
    "flat": (_rank(2, -1, 2), lambda ops, x, k: ops.reshape(x, shape=(x.shape[0] * x.shape[1],))),
    "rows": (_rank(3, -1), lambda ops, x, k: ops.reshape(x, shape=(-1, x.shape[2]))),
    "pairs": (_rank(1, 1, 1), lambda ops, x, k: ops.reshape(x, shape=(x.shape[0] // 2, 2))),
    "tuples": (_rank(1, 1, 1), lambda ops, x, k: ops.reshape(x, shape=(k, -1))),
    "unsqueeze": (_rank(0, 1, 2), lambda ops, x, k: ops.unsqueeze(x, axis=k % (len(x.shape) + 1))),
    "squeeze": (_rank(1, -1), lambda ops, x, k: ops.squeeze(x, axis=_axis(x, k))),
    "row": (_rank(2, -1, 2), lambda ops, x, k: ops.gather_row(x, index=k)),
    "last": (_rank(2, -1, 2), lambda ops, x, k: ops.gather_row(x, index=x.shape[0] - 1)),
    "tail": (_rank(1), lambda ops, x, k: _sliced(ops, x, k, 1, lambda d: d - 1)),
    "head": (_rank(1), lambda ops, x, k: _sliced(ops, x, k, 0, lambda d: k)),
    "half": (_rank(1), lambda ops, x, k: _sliced(ops, x, k, 0, lambda d: d // 2)),
    "odd": (_rank(1), lambda ops, x, k: _sliced(ops, x, k, 1, lambda d: d // 2, 2)),
    "pad": (_rank(1), lambda ops, x, k: ops.pad(x, padding=[(k, 1)] * len(x.shape))),
    "split": (_rank(1), lambda ops, x, k: ops.split(x, sizes=(k, x.shape[0] - k))[1]),
    "broadcast": (_rank(0, 1, 2), lambda ops, x, k: ops.broadcast_to(x, shape=(k, *x.shape))),
    "conv": (_rank(2, most=2), _convolved),
    "max_pool": (_rank(2, most=2), lambda ops, x, k: ops.max_pool(x, kernel=(2,), stride=1 + k % 2)),
}
BINARY: dict[str, Template] = {
    "add": (_rank(0), lambda ops, x, y, k: ops.add(x, y)),
    "concat": (_rank(1), lambda ops, x, y, k: ops.concat([x, y], axis=_axis(x, k))),
    "stack": (_rank(0, 1, 2), lambda ops, x, y, k: ops.stack([x, y], axis=0)),
    "matmul": (_rank(2, most=2), lambda ops, x, y, k: ops.matmul(x, y)),
    "gram": (_rank(2, most=2), lambda ops, x, y, k: ops.matmul(ops.transpose2d(x), y)),
    "linear": (_rank(2, most=2), lambda ops, x, y, k: ops.linear(y, None, x)),
    "like": (_rank(1, most=1), lambda ops, x, y, k: ops.slice(x, axis=0, start=0, length=y.shape[0])),
}


@dataclass(frozen=True)
class Program:
    """Inputs v0, v1 … with their shapes, and steps (op, operands, k)."""

    shapes: tuple[str, ...]
    where: tuple[str, ...]
    steps: tuple[tuple[str, tuple[int, ...], int], ...]

    def __call__(self, ops: Any, *refs: Any) -> list[Any]:
        pool = list(refs)
        for op, operands, k in self.steps:
            apply = (UNARY.get(op) or BINARY[op])[1]
            pool.append(apply(ops, *(pool[i] for i in operands), k))
        return pool[len(refs) :]

    @property
    def specs(self) -> list[Spec]:
        return [Spec(shape, where=self.where if i == 0 else ()) for i, shape in enumerate(self.shapes)]

    def allowed(self, sizes: dict[str, int]) -> bool:
        """The constraints, by Python's own arithmetic."""
        return all(eval(constraint, {}, dict(sizes)) for constraint in self.where)

    def every_size(self, most: int, **fixed: int) -> Iterator[dict[str, int]]:
        ranges = [(fixed[name],) if name in fixed else range(1, most + 1) for name in NAMES]
        for values in itertools.product(*ranges):
            sizes = dict(zip(NAMES, values, strict=True))
            if self.allowed(sizes):
                yield sizes

    def run(self, sizes: dict[str, int]) -> list[Any] | None:
        """The results at these sizes, None where the program fails."""
        shapes = [tuple(eval(axis, {}, dict(sizes)) for axis in shape.split()) for shape in self.shapes]
        args = [np.random.default_rng(0).standard_normal(shape) for shape in shapes]
        try:
            return list(opstage.run(self, *args, options=FLOAT64))
        except (OpstageError, ZeroDivisionError):
            return None

    def concrete(self, sizes: dict[str, int]) -> Report:
        shapes = [tuple(eval(axis, {}, dict(sizes)) for axis in shape.split()) for shape in self.shapes]
        return opstage.check(self, *shapes, options=FLOAT64)


@st.composite
def symbolic_programs(draw: Any) -> Program:
    ranks = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    shapes = [" ".join(draw(st.sampled_from(AXES)) for _ in range(rank)) for rank in ranks]
    shapes.append(" ".join(NAMES))  # so that each name stands alone on an axis
    ranks.append(3)
    where = draw(st.lists(st.sampled_from(CONSTRAINTS), max_size=2, unique=True))
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        x = draw(st.integers(0, len(ranks) - 1))
        twins = [i for i, rank in enumerate(ranks) if rank == ranks[x]]
        unary = {op: fits(ranks[x]) for op, (fits, _) in UNARY.items()}
        binary = {op: fits(ranks[x]) for op, (fits, _) in BINARY.items()}
        fitting = {op: rank for op, rank in {**binary, **unary}.items() if rank is not None}
        op = draw(st.sampled_from(sorted(fitting)))
        operands = (x,) if op in UNARY else (x, draw(st.sampled_from(twins)))
        steps.append((op, operands, draw(st.integers(1, 3))))
        ranks.append(fitting[op])
    return Program(tuple(shapes), tuple(where), tuple(steps))


def verdicts_come_true(program: Program, most: int) -> None:
    possible = list(program.every_size(most))
    report = opstage.check(program, *program.specs, options=FLOAT64)
    if any(finding.op == "Spec" for finding in report.errors):  # contradictory or empty declarations
        assert not possible or "always holds" in str(report), report
        return
    ends = [dict(zip(NAMES, values, strict=True)) for values in ENDS]
    for sizes in [*possible[:: max(1, len(possible) // 6)], *filter(program.allowed, ends)]:
        results = program.run(sizes)
        if report.ok:
            holds = [c.holds(sizes) for c in report.conditions if c.holds is not None]
            assert (results is not None) == all(holds), (sizes, report)
        elif any(hopeless(finding.reason) for finding in report.errors):
            assert results is None, (sizes, report)
        if report.ok and results is not None:
            assert [r.shape for r in results] == [evaluate(t.shape, sizes) for t in report.outputs], sizes
            counted = program.concrete(sizes).cost
            assert evaluate(report.cost.flops, sizes) == counted.flops, sizes
            assert evaluate(report.cost.bytes, sizes) == counted.bytes, sizes
    for finding in report.errors:
        witness = witness_of(finding.reason)
        if witness:
            at = next(program.every_size(12, **witness), None)
            assert at is not None, f"no allowed sizes have {witness}: {finding}"
            assert program.run(at) is None, f"it runs at {at}: {finding}"


def hopeless(reason: str) -> bool:
    """Whether an error says that no size helps."""
    return "fails at" not in reason or "fails at every allowed size" in reason


def witness_of(reason: str) -> dict[str, int]:
    found = re.search(r"fails at ((?:\w+=\d+(?:, )?)+)", reason)
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", found.group(1))} if found else {}


@settings(max_examples=60)
@given(symbolic_programs())
def test_verdicts_come_true(program: Program) -> None:
    verdicts_come_true(program, 5)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=share(4000))
@given(symbolic_programs())
def test_verdicts_of_many_more_programs_come_true(program: Program) -> None:
    verdicts_come_true(program, 7)
