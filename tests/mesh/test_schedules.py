"""No order in which processes of one host go on changes a bit of what they compute in memory that others read."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.interpreters.base_program import BaseProgram
from opstage.interpreters.graph.cpu import plan
from opstage.interpreters.mesh.board import Board
from opstage.interpreters.mesh.buckets import Bucket
from opstage.interpreters.mesh.direct import DirectExchange
from opstage.interpreters.mesh.mpi import MpiFabric
from opstage.interpreters.mesh.near import INLINE, Near
from opstage.interpreters.mesh.ranks import on_mesh
from opstage.interpreters.registry import make_interpreter
from opstage.ops.errors import OutOfMemoryError, RangeError, RankError
from opstage.training.commit import Commit
from tests.mesh.schedules import on_host

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are near on Linux alone")

SHAPES = {"a": (97, 96), "b": (97, 97), "c": (96, 97)}
"""Of weights, which are larger than what a note carries; some have elements that ranks cannot share equally."""
STEPS = 6
ADAMW = opstage.optim.adamw(lr=1e-2, weight_decay=0.1)
MUON = opstage.optim.muon(lr=1e-2)
"""Its products of matrices come after the sums, and need memory."""


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    for name in SHAPES:
        x = ops.tanh(ops.linear(params[name], None, x))
    return ops.mse_loss(x, y)


def digest(rule: Any = ADAMW, **options: Any) -> str:
    """Of losses and parameters after some steps, each on a batch of its own."""
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(shape) / 9 for name, shape in SHAPES.items()}
    assert all(4 * rows * columns > 2 * INLINE for rows, columns in SHAPES.values())
    trainer = opstage.scalar_trainer(loss, params, options=Options(**options))
    state, found = trainer.init_optim(rule), hashlib.sha256()
    for _ in range(STEPS):
        x, y = rng.standard_normal((2, 12, 96))
        found.update(repr(float(trainer.advance(rule, state, x, y).loss)).encode())
    for each in trainer.get_params().values():
        found.update(np.asarray(each).tobytes())
    return found.hexdigest()


CASES: list[tuple[int, dict[str, Any]]] = [
    (2, {"mesh": "data=2", "backend": "compiled"}),
    (2, {"mesh": "data=2", "backend": "compiled", "bucket": "40KiB"}),
    (2, {"mesh": "data=2", "backend": "compiled", "bucket": "40KiB", "zero": 2}),
    (2, {"mesh": "data=2", "backend": "compiled", "bucket": "0", "zero": 3}),
    (2, {"mesh": "data=4", "backend": "compiled", "bucket": "40KiB", "zero": 3}),
    (2, {"mesh": "data=2", "backend": "eager", "bucket": "40KiB"}),
    (3, {"mesh": "data=3", "backend": "compiled"}),
    (3, {"mesh": "data=3", "backend": "eager", "zero": 3}),
    (4, {"mesh": "data=4", "backend": "compiled", "zero": 2}),
    (2, {"mesh": "data=2", "backend": "compiled", "rule": MUON}),
    (2, {"mesh": "data=2", "backend": "compiled", "bucket": "0"}),
    (2, {"mesh": "data=2", "backend": "compiled", "zero": 2}),
    (2, {"mesh": "data=2", "backend": "compiled", "zero": 3}),
    (3, {"mesh": "data=3", "backend": "compiled", "zero": 3, "bucket": "40KiB"}),
]
SEEDS = range(6)


@pytest.mark.parametrize("processes, options", CASES)
def test_bits_do_not_depend_on_who_goes_on(processes: int, options: dict[str, Any]) -> None:
    alone, done, sent = digest(**options), Counter[Any](), set[tuple[int, int]]()

    def run(fabric: MpiFabric) -> str:
        found = digest(**options)
        sent.add((fabric.process, fabric.sent))
        return found

    for seed in SEEDS:
        found = on_host(processes, seed, run, boards=seed % 3 > 0, done=done)
        assert found == [alone] * processes, seed
    assert len(sent) == processes  # of each the same, whatever moves them
    one_each = options["backend"] == "compiled" and options["mesh"] == f"data={processes}"
    by_machine_code = one_each and (processes == 2 or options.get("zero", 0))
    assert not by_machine_code or (done["end", True] and done["end", False]), done
    assert not done["begin", False]  # what is sent stands where the others read it


MUTANTS: list[tuple[Any, str, Any, int]] = [
    (Board, "is_read", lambda board, block: True, 1),
    (Near, "is_read", lambda near, address: True, 1),  # the next run begins while the others still read this one
    (Board, "is_read", lambda board, block: True, 11),
    (plan, "memory_read", lambda lowered, equations: set(), 12),
    (plan, "memory_read", lambda lowered, equations: set(), 9),  # what comes later in a run has the memory of a bucket
    (Near, "_idle_copy", lambda near, nbytes: next((n for n, x in near._copies.items() if len(x) == nbytes), None), 5),
]


@pytest.mark.parametrize("owner, name, mutant, case", MUTANTS)
def test_memory_overwritten_too_early_would_be_seen(
    owner: Any, name: str, mutant: Any, case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, options = CASES[case]
    alone = digest(**options)
    monkeypatch.setattr(owner, name, mutant)
    found = [on_host(processes, seed, lambda _: digest(**options), boards=owner is Board) for seed in SEEDS]
    assert any(each != [alone] * processes for each in found)


def test_a_sum_that_is_an_output_is_in_one_vector_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(bucket: Bucket) -> None:
        raise AssertionError("tensors are joined in an array of their own")

    monkeypatch.setattr(Bucket, "begin", begin)
    on_host(2, 0, lambda _: digest(mesh="data=2", backend="compiled"))


@pytest.mark.parametrize("in_parts", [True, False])
@pytest.mark.parametrize("boards", [True, False])
def test_what_a_failed_run_has_begun_keeps_no_other_program_waiting(
    boards: bool, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index is out of range on all ranks while a large sum, or its parts, are under way."""

    def sums(ops: Any, x: Any, at: Any) -> tuple[Any, ...]:
        first = ops.mul(x, x)
        if in_parts:
            first = ops.all_gather(ops.reduce_scatter(first, axis="data"), axis="data", replicated=True)
        else:
            first = ops.all_reduce(first, axis="data")
        second = ops.all_reduce(x * ops.reduce_sum(ops.gather_rows(x, at)), axis="data")
        return (ops.add(first, 0.0), ops.add(second, 0.0)), None

    def other(ops: Any, x: Any) -> tuple[Any, ...]:
        return (ops.all_reduce(ops.reduce_sum(ops.exp(x)), axis="data"),), None

    abandoned, abandon = list[bool](), DirectExchange.abandon

    def noted(exchange: DirectExchange) -> None:
        abandoned.append(exchange.begun)
        abandon(exchange)

    monkeypatch.setattr(DirectExchange, "abandon", noted)

    def run(fabric: MpiFabric) -> list[Any]:
        fabric.timeout = 5.0
        programs = [BaseProgram(program, None, program.__name__) for program in (sums, other)]
        options, size = Options(mesh="data=2", backend="compiled", bucket="1KiB"), 2 * INLINE
        ops: Any = on_mesh(make_interpreter(options), options)

        def each(value: Any) -> Any:
            return ops.each([ops.inner.put(value) for _ in ops.hosted])

        x = each(np.full(size, 1.0 + fabric.process, np.float32))
        begun, found = list[bool](), list[Any]()
        for index in (0, 0, 0, size, size, 0):
            with pytest.raises(RangeError) if index else nullcontext():
                found.append([np.asarray(out)[0] for out in ops.execute(programs[0], (x, each(np.full(1, index))))])
            begun.append(bool(np.asarray(ops.execute(programs[1], (x,))[0]) > 0))
        return [found, begun]

    (one, _), (also, _) = on_host(2, 0, run, boards=boards)
    assert one == also == [[5.0, 5.0]] * 4
    assert abandoned == [True] * (4 if boards else 0)  # two runs of either process


def test_memory_that_the_system_does_not_give_is_the_error_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Near.empty

    def refused(near: Near, nbytes: int) -> Any:
        if near._made:  # the program has its memory, and a copy of what it sends gets none
            raise OutOfMemoryError("no memory to share")
        return empty(near, nbytes)

    monkeypatch.setattr(Near, "empty", refused)
    with pytest.raises(OutOfMemoryError, match=r"meet at .*test_schedules.py.*: no memory to share"):
        on_host(2, 0, lambda _: digest(mesh="data=2", backend="compiled", bucket="0"))


@pytest.mark.parametrize("boards", [True, False])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("fails", ["an index", "the commit"])
def test_one_that_goes_on_after_an_error_of_its_own_is_summed_with_no_other(
    fails: str, backend: Any, boards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step ends on one of two processes, before its sums or after all of them; that one takes the next batch."""
    commit = Commit.run

    def table_loss(ops: Any, params: Any, ids: Any, y: Any) -> Any:
        return ops.mse_loss(ops.gather_rows(params["table"], ids), y)

    def interrupted(self: Commit, *given: Any) -> None:
        if threading.current_thread() in ending:
            raise KeyboardInterrupt
        commit(self, *given)

    def run(fabric: MpiFabric) -> list[Any]:
        fabric.timeout, rng, found = 5.0, np.random.default_rng(0), list[Any]()
        options = Options(mesh="data=2", backend=backend)
        trainer = opstage.scalar_trainer(table_loss, {"table": rng.standard_normal((9, 5))}, options=options)
        for step in range(4):
            ids, y = rng.integers(0, 9, 8), rng.standard_normal((8, 5))
            if step == 2 and fabric.process == 1:
                if fails == "an index":
                    ids[-1] = 9
                else:
                    ending.add(threading.current_thread())
            try:
                found.append(float(trainer.step(0.5, ids, y)))
            except RankError as error:
                return [*found, error.reason]
            except (RangeError, KeyboardInterrupt):
                ending.clear()
        return found

    ending = set[threading.Thread]()
    monkeypatch.setattr(Commit, "run", interrupted)
    (one, told), (other, also) = ([each[:-1], each[-1]] for each in on_host(2, 0, run, boards=boards))
    assert one[:2] == other[:2] and len(other) == 2
    assert len(one) == (2 if fails == "an index" else 3)
    for each in (told, also):
        assert "process 1 of 2 on here goes on after an error" in each
