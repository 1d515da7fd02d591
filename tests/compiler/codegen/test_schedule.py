"""Loops of clusters: which pass reads, makes, keeps and stores what, and that nothing is used before it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opstage.compiler.codegen.clusters import Level, left_in_memory, read_by
from opstage.compiler.codegen.cpu.kernels import LOOPS
from opstage.compiler.codegen.cuda.source import CUDA
from opstage.compiler.codegen.fusion import fuse
from opstage.compiler.codegen.loop import (
    Accumulation,
    Assign,
    Check,
    KeptRow,
    Load,
    Local,
    LoopNest,
    Statement,
    Store,
    Value,
    space_of,
)
from opstage.compiler.codegen.lowering import Lowered, Target
from opstage.compiler.codegen.schedule import Scheduling, schedule
from opstage.interpreters.graph import record
from opstage.interpreters.graph.cpu.plan import optimise
from opstage.ops.types import FLOAT32, TensorType
from tests.graph.random_programs import random_graph


def softmax(ops: Any, x: Any) -> tuple[Any, ...]:
    e = ops.exp(ops.sub(x, ops.broadcast_to(ops.reduce_max(x, axis=1, keepdims=True), shape=x.shape)))
    return (ops.div(e, ops.broadcast_to(ops.reduce_sum(e, axis=1, keepdims=True), shape=x.shape)),)


def columns(ops: Any, x: Any) -> tuple[Any, ...]:
    y = ops.exp(x)
    return ops.reduce_sum(ops.mul(y, x), axis=0), y


def loops(lowered: Lowered, how: Scheduling) -> list[LoopNest]:
    groups = fuse(lowered)
    read, results = read_by(lowered, groups), [lowered.views[slot].root for slot in lowered.outputs]
    return [
        schedule(cluster, group.equations, space_of(cluster, left_in_memory(lowered, group, i, read, results)), how)
        for i, group in enumerate(groups)
        if (cluster := group.cluster) is not None
    ]


def brief(statement: Statement) -> str:
    if isinstance(statement, Assign):
        return str(statement.equation.primitive)
    kept = isinstance(statement, (Load, Store)) and isinstance(statement.place, KeptRow)
    return type(statement).__name__.lower() + (" kept" if kept else "")


def passes(program: Callable[..., tuple[Any, ...]], target: Target, how: Scheduling) -> list[list[str]]:
    graph = record(program, [TensorType((5, 7), FLOAT32)], FLOAT32, 0)
    (loop,) = loops(Lowered(graph.body, target, own_outputs=True), how)
    return [list(map(brief, [*each.before, *each.inside])) for each in loop.passes]


CASES = {
    "elements are kept for later passes": (
        softmax,
        LOOPS,
        Scheduling(),
        [["load", "accumulation"], ["load", "sub", "exp", "accumulation", "store kept"], ["load kept", "div", "store"]],
    ),
    "later passes make elements again": (
        softmax,
        CUDA,
        Scheduling(recomputes=True),
        [["load", "accumulation"], ["load", "sub", "exp", "accumulation"], ["load", "sub", "exp", "div", "store"]],
    ),
    "sums over rows take one pass": (columns, LOOPS, Scheduling(), [["load", "exp", "store", "mul", "accumulation"]]),
    "results are written at the end": (
        lambda ops, x: (y := ops.exp(x), ops.neg(y)),
        CUDA,
        Scheduling(loads_first=True),
        [["load", "exp", "neg", "store", "store"]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_pass_does(case: str) -> None:
    program, target, how, expected = CASES[case]
    assert passes(program, target, how) == expected


def values(statement: Statement) -> list[Value]:
    """What a statement uses."""
    if isinstance(statement, Assign):
        return [*statement.args]
    if isinstance(statement, Check):
        return [statement.position, statement.value]
    if isinstance(statement, Accumulation):
        return [statement.value]
    return [statement.local] if isinstance(statement, Store) else []


def check_order(loop: LoopNest, lanes: bool) -> None:
    """A value of the elements is used in the pass that has it, after it was made there; one of a row from then on."""
    own = {operand.local for operand in loop.space.reads.values() if operand.local.level is Level.ROW}
    of_row: set[Value] = {*own} if lanes else set()
    kept: set[str] = set()
    for each in loop.passes:
        known: set[Value] = set()
        for part in (each.before, each.inside):
            for statement in part:
                for value in values(statement):
                    assert not isinstance(value, Local) or value in of_row or value in known, (value, statement)
                if isinstance(statement, (Load, Assign, Check)):
                    (of_row if part is each.before else known).add(statement.local)
                if isinstance(statement, (Load, Store)) and isinstance(statement.place, KeptRow):
                    name = statement.place.local.name
                    assert isinstance(statement, Store) or name in kept
                    kept.add(name)
        of_row |= {accumulator.local for accumulator in each.row}


def test_random_programs_use_nothing_too_early() -> None:
    for seed in range(16):
        body = optimise(random_graph(seed)[0])[0].body
        for target, options in (
            (LOOPS, (Scheduling(), Scheduling(lanes=True))),
            (CUDA, (Scheduling(recomputes=True),)),
        ):
            for how in options:
                for loop in loops(Lowered(body, target), how):
                    check_order(loop, how.lanes)
