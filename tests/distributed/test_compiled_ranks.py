"""Compiled programs of ranks: what the eager interpreter says, and the same bits however many ranks a process hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, RangeError
from opstage.data.loader import OwnRows
from opstage.distributed.ranks import Ranks, on_mesh
from opstage.interpreters.registry import make_interpreter
from opstage.transforms.base_program import BaseProgram
from tests.distributed.threads import on_processes

AXIS = "data"
Program = Callable[..., tuple[Any, ...]]


def joined(ops: Any, x: Any, w: Any) -> tuple[Any, ...]:
    """A tensor of which one part is alike on all ranks, one is not, and one lies in the parameter itself."""
    own = ops.exp(ops.shard(x, axis=AXIS))
    whole = ops.concat([ops.mul(w, w), own, w], axis=0)
    return whole, ops.all_reduce(whole, axis=AXIS), ops.mul(w, w)


def cut_elsewhere(ops: Any, x: Any, w: Any) -> tuple[Any, ...]:
    """Parts that do not lie in one piece, are given out as they are, and are of a tensor that is turned."""
    turned = ops.permute(x, axes=(1, 0))
    parts = ops.shard(x, axis=AXIS, dim=1), ops.shard(x, axis=AXIS), ops.shard(turned, axis=AXIS)
    return (*parts, ops.reduce_sum(ops.add(parts[0], parts[0])), ops.sub(ops.shard(w, axis=AXIS), parts[1]))


def numbered(ops: Any, x: Any, w: Any) -> tuple[Any, ...]:
    """Each rank's number, alone and in arithmetic; numbers that all have; nothing at all."""
    number = ops.cast(ops.axis_index(axis=AXIS), dtype="float32")
    spread = ops.broadcast_to(number, shape=x.shape)
    none = ops.shard(ops.slice(x, axis=0, start=0, length=0), axis=AXIS)
    full = ops.shard(ops.full(shape=(4, 2), value=3.0), axis=AXIS)
    return ops.mul(spread, x), ops.axis_index(axis=AXIS), none, full, ops.all_reduce(number, axis=AXIS)


def two_rounds(ops: Any, x: Any, w: Any) -> tuple[Any, ...]:
    """Sums of sums, a part of a part's sum, the same input given back, and rows that are summed."""
    own = ops.shard(ops.softmax(x), axis=AXIS)
    mean = ops.all_reduce(ops.reduce_sum(own, axis=0), axis=AXIS)
    apart = ops.sub(own, ops.broadcast_to(mean, shape=own.shape))
    spread = ops.all_reduce(ops.reduce_sum(ops.mul(apart, apart), axis=0), axis=AXIS)
    moved = ops.shift(ops.all_gather(apart, axis=AXIS), axis=AXIS)
    return spread, moved, ops.all_to_all(moved, axis=AXIS, split=0, join=1), w, x


def looped(ops: Any, x: Any, w: Any) -> tuple[Any, ...]:
    """A loop of a rank's own, one in which ranks meet, and a draw."""

    def own(inner: Any, state: Any, row: Any) -> tuple[Any, Any]:
        total = inner.add(state, row)
        return total, inner.mul(total, total)

    def together(inner: Any, state: Any, row: Any) -> tuple[Any, Any]:
        return inner.add(state, inner.all_reduce(row, axis=AXIS)), state

    part = ops.shard(x, axis=AXIS)
    first = ops.reduce_sum(part, axis=0)
    drawn = ops.rand_uniform(shape=(8, 8))
    return (*ops.scan(own, first, part), *ops.scan(together, first, part), ops.mul(ops.shard(drawn, axis=AXIS), part))


PROGRAMS = (joined, cut_elsewhere, numbered, two_rounds, looped)


def results(
    program: Program, mesh: str, backend: str, alike: bool = True, device: str = "cpu"
) -> list[list[np.ndarray[Any, Any]]]:
    """The results of each rank here, of inputs that all have alike or of x of a rank's own."""
    how = Options(mesh=mesh, backend=backend, device=device)  # type: ignore[arg-type]
    ops = on_mesh(make_interpreter(how), how)
    assert isinstance(ops, Ranks)
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal((8, 8)).astype("f") for _ in range(2))
    own = [x if alike else x + np.float32(rank) for rank in range(ops.mesh.ranks)]
    given = ops.put(x) if alike else ops.each([ops.inner.put(own[rank]) for rank in ops.hosted])
    outs = ops.execute(program, (given, ops.put(w)), 3)
    return [[np.array(ops.inner.get(ops.adopt(out).values[i])) for out in outs] for i in range(len(ops.hosted))]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("mesh", ["data=4", "data=2,model=2"])
def test_a_compiled_program_of_ranks(program: Program, mesh: str) -> None:
    for alike in (True, False):
        expected, found = (results(program, mesh, backend, alike) for backend in ("eager", "compiled"))
        for one, other in zip(expected, found, strict=True):
            for a, b in zip(one, other, strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)
        for count in (2, 4):
            spread = on_processes(count, lambda _, alike=alike: results(program, mesh, "compiled", alike))  # type: ignore[misc]
            every = [rank for part in spread for rank in part]
            assert [[out.tobytes() for out in rank] for rank in every] == [[o.tobytes() for o in r] for r in found]


def test_inputs_are_written_over_only_where_they_may_be() -> None:
    """Replicated and varying ones, given to two inputs, and read by others after they were written."""

    def move(ops: Any, p: Any, q: Any, g: Any) -> tuple[list[Any], Any]:
        step = ops.all_reduce(g, axis=AXIS)
        return [ops.sub(p, step), ops.add(ops.mul(q, p), g)], None

    how = Options(mesh="data=4", backend="compiled")
    ops: Any = on_mesh(make_interpreter(how), how)
    rng = np.random.default_rng(0)
    p, g = rng.standard_normal((2, 50_000)).astype("f")
    own = [g * np.float32(rank) for rank in range(4)]
    for shared in (False, True):
        given = [np.array(p), [np.array(p) if not shared else None for _ in range(4)], [np.array(each) for each in own]]
        first = ops.put(given[0])
        second = first if shared else ops.each([ops.inner.put(each) for each in given[1]])
        third = ops.each([ops.inner.put(each) for each in given[2]])
        program = BaseProgram(move, None, "moved", {0: True, 1: True, 2: False})
        moved, grown = ops.execute(program, (first, second, third))
        program.finish(())
        for rank in range(4):
            np.testing.assert_allclose(ops.inner.get(moved.values[rank]), p - g * np.float32(6), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(ops.inner.get(grown.values[rank]), p * p + own[rank], rtol=1e-5, atol=1e-5)
            assert np.array_equal(ops.inner.get(third.values[rank]), own[rank])


def stepped(ops: Any, p: Any, x: Any, g: Any) -> tuple[Any, Any]:
    """A parameter moved by the sum of a rank's own rows, what it was, and one more of its kind."""
    own = ops.reduce_sum(ops.shard(x, axis=AXIS), axis=0)
    step = ops.broadcast_to(ops.all_reduce(own, axis=AXIS), shape=p.shape)
    return [ops.sub(p, step), ops.add(g, g), ops.mul(g, g)], None


def test_a_rank_s_result_that_is_written_over_an_input_is_that_ref_and_no_other_is() -> None:
    p, x = np.arange(4096, dtype=np.float32).reshape(512, 8), np.ones((4, 8), np.float32)

    def run(transport: Any) -> None:
        how = Options(mesh="data=2", backend="compiled")
        ops: Any = on_mesh(make_interpreter(how), how)
        g = np.full_like(p, 0.5)
        rows = OwnRows(4, ops.own_rows(4), x[ops.own_rows(4)])
        for batch in (x, rows):
            for free in ({0: True, 2: True}, {0: False, 2: True}, {}):
                refs = ops.put(p.copy()), ops.put(batch), ops.put(g.copy())
                program = BaseProgram(stepped, None, "stepped", free)
                moved, doubled, squared = ops.execute(program, refs)
                np.testing.assert_array_equal(ops.get(refs[0]), p)
                program.finish(())
                assert (moved is refs[0]) == free.get(0, False)
                assert moved is not refs[1] and doubled is not squared
                for out, wanted in ((moved, p - 4), (doubled, g + g), (squared, g * g)):
                    assert (type(out), out.shape, out.dtype) == (np.ndarray, wanted.shape, wanted.dtype)
                    np.testing.assert_array_equal(ops.get(out), wanted)
                if not free.get(0):
                    np.testing.assert_array_equal(ops.get(refs[0]), p)

    on_processes(2, run)


def lookup(ops: Any, params: Any, i: Any) -> Any:
    """A loss that asks for rows before the ranks meet."""
    return ops.reduce_mean(ops.gather_rows(params["table"], i))


def test_an_index_out_of_range_on_one_rank_ends_the_step_before_anything_moves() -> None:
    table, rows = np.ones((6, 4), np.float32), np.arange(8) % 6
    trainer = opstage.scalar_trainer(lookup, {"table": table}, options=Options(mesh="data=4", backend="compiled"))
    trainer.step(0.1, rows)
    before = np.array(trainer.get_params()["table"])
    rows[7] = 9  # of the last rank
    with pytest.raises(RangeError, match=r"gather_rows.*9"):
        trainer.step(0.1, rows)
    assert np.array_equal(before, trainer.get_params()["table"])
