"""Every collective on four ranks: its value against NumPy, its derivatives against each other, and its errors."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.distributed.ranks import Ranks, RankValues, on_mesh
from opstage.distributed.varying import Varying, VaryingRef
from opstage.interpreters.registry import make_interpreter
from opstage.ops.collective import CollectiveOps
from opstage.ops.protocol import OPS
from opstage.transforms.derivatives import jvp, vjp
from tests.conformance.raises import stated
from tests.distributed.cases import AXIS, CASES, RANKS, Case
from tests.distributed.compared import assert_close

SEED = 3
OVER = frozenset({AXIS})
RANK_VALUES, APART = (
    [np.full((3,), float(rank)) for rank in range(RANKS)],
    [np.array(rank > 1) for rank in range(RANKS)],
)


def mesh_of(text: str = f"{AXIS}={RANKS}", **options: Any) -> Ranks:
    how = Options(dtype="float64", mesh=text, **options)
    made = on_mesh(make_interpreter(how), how)
    assert isinstance(made, Ranks)
    return made


def drawn(rng: np.random.Generator, shape: tuple[int, ...], varies: bool) -> list[Any]:
    return [rng.standard_normal(shape) for _ in range(RANKS)] if varies else [rng.standard_normal(shape)] * RANKS


def held(ops: Ranks, values: list[Any]) -> RankValues:
    known = {id(value): ops.inner.put(value) for value in values}
    return ops.each([known[id(value)] for value in values])


def numbers(ops: Ranks, ref: Any) -> list[Any]:
    return [np.asarray(ops.inner.get(value)) for value in ref.values]


def found_by(f: Any, *values: list[Any], mesh: str = f"{AXIS}={RANKS}") -> list[list[Any]]:
    """The results of a program of a rank, for the values of each: of each result those of all ranks."""
    ops = mesh_of(mesh)
    return [numbers(ops, out) for out in ops.execute_each(f, tuple([held(ops, each) for each in values]))]


def under_the_rule(call: Any, varies: bool, ops: Any, x: Any) -> VaryingRef[Any]:
    """A call under the rule of what varies over the ranks."""
    varying = Varying(ops, OVER)
    out: VaryingRef[Any] = call(varying, VaryingRef(x, varying, OVER if varies else frozenset()))
    return out


def program(case: Case, found: list[frozenset[str]]) -> Any:
    """The case under the rule, which says whether its result varies."""

    def run(ops: Any, x: Any) -> Any:
        out = under_the_rule(case.call, case.varies, ops, x)
        found.append(out.axes)
        return out.value

    return run


def test_every_collective_has_a_case() -> None:
    methods = {name for name in vars(CollectiveOps) if not name.startswith("_")}
    assert {case.name for case in CASES} | {"axis_index", "batch_mean"} == methods | {
        "all_mean",
        "batch_mean",
        "broadcast",
    }


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_derivatives(case: Case, backend: str) -> None:
    rng = np.random.default_rng(SEED)
    ops = mesh_of(backend=backend)
    xs, ts = drawn(rng, case.shape, case.varies), drawn(rng, case.shape, case.varies)
    expected = [np.asarray(each) for each in case.reference(xs)]
    us = drawn(rng, expected[0].shape, case.out)
    axes: list[frozenset[str]] = []

    def whole(outer: Any, x: Any, t: Any, u: Any) -> Any:
        f = program(case, axes)
        if not case.moves:
            return (f(outer, x),)
        out, tangent = jvp(outer, f, (x,), (t,))
        _, pull = vjp(outer, f, x)
        return out, tangent, pull(u)[0]

    found = ops.execute_each(whole, (held(ops, xs), held(ops, ts), held(ops, us)))
    assert_close(numbers(ops, found[0]), expected, rtol=1e-15, atol=1e-15)
    assert set(axes) == {OVER if case.out else frozenset()}
    if case.moves:
        tangent, back = numbers(ops, found[1]), numbers(ops, found[2])
        left, right = _inner(tangent, us, case.out), _inner(back, ts, case.varies)
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)


def _inner(a: list[Any], b: list[Any], varies: bool) -> float:
    """<a, b>: of what varies the sum over ranks, of what all ranks have alike once."""
    products = [float((x * y).sum()) for x, y in zip(a, b, strict=True)]
    return sum(products) if varies else products[0]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_where_no_mesh_is_it_is_its_operand(case: Case) -> None:
    x = np.random.default_rng(SEED).standard_normal(case.shape)
    for backend in ("eager", "compiled"):
        out = opstage.run(case.call, x, options=Options(dtype="float64", backend=backend))
        np.testing.assert_array_equal(out, x)


def test_a_batch_mean_is_of_what_counts_on_all_ranks() -> None:
    totals, counts = [np.array(float(rank)) for rank in range(RANKS)], [np.array(2.0 * rank) for rank in range(RANKS)]
    (out,) = found_by(lambda o, *each: (opstage.derived.batch_mean(o, *each, axis=AXIS),), totals, counts)
    assert [float(value) for value in out] == [0.5] * RANKS


def test_axes_of_one_mesh_are_apart() -> None:
    values = [np.full((2,), 10.0**rank) for rank in range(6)]

    def sums(outer: Any, x: Any) -> Any:
        return outer.all_reduce(x, axis="data"), outer.all_reduce(x, axis="model"), outer.axis_index(axis="model")

    over_data, over_model, index = found_by(sums, values, mesh="data=2,model=3")
    assert [v[0] for v in over_data] == [1001, 10010, 100100] * 2
    assert [v[0] for v in over_model] == [111] * 3 + [111000] * 3
    assert [int(v) for v in index] == [0, 1, 2, 0, 1, 2]


def summed(ops: Any, x: Any) -> Any:
    return (ops.all_reduce(x, axis=AXIS),)


def test_a_sum_of_integers_is_exact_and_of_masks_an_error() -> None:
    (out,) = found_by(summed, [np.array(2**53 + rank, np.int64) for rank in range(RANKS)])
    assert int(out[0]) == 4 * 2**53 + 6
    with pytest.raises(opstage.DtypeError, match=r"all_reduce at .*: a sum over ranks is of numbers, but x is a mask"):
        found_by(summed, [np.array([True, False])] * RANKS)


def test_one_nan_reaches_every_rank() -> None:
    values = [np.array([np.nan if rank == 2 else 1.0, float(rank)]) for rank in range(RANKS)]
    for name in ("all_reduce", "all_max"):
        for value in found_by(lambda o, x, name=name: (getattr(o, name)(x, axis=AXIS),), values)[0]:
            assert np.isnan(value[0]) and np.isfinite(value[1])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda o, x: o.shard(x, axis=AXIS), r"axis 0 has 6, which 4 ranks of mesh axis 'data' cannot share equally"),
        (lambda o, x: o.reduce_scatter(x, axis=AXIS, dim=3), r"dim=3 is not an axis of x"),
        (lambda o, x: o.all_to_all(x, axis=AXIS, split=1, join=0), r"axis 1 has 3, which 4 ranks"),
    ],
)
def test_what_the_ranks_cannot_share(call: Any, message: str) -> None:
    with pytest.raises(opstage.ShapeError, match=message):
        found_by(lambda o, x: (call(o, x),), [np.ones((6, 3))] * RANKS)


@pytest.mark.parametrize(
    "call, varies, message",
    [
        (
            lambda o, x: o.all_reduce(x, axis=AXIS),
            False,
            "the same x, so there is nothing to send; their sum would be 4",
        ),
        (lambda o, x: o.all_gather(x, axis=AXIS), False, "the same x, so there is nothing to send"),
        (
            lambda o, x: o.shard(x, axis=AXIS),
            True,
            "x varies over mesh axis 'data' already; shard expects a replicated x",
        ),
        (lambda o, x: o.vary(x, axis=AXIS), True, "x varies over mesh axis 'data' already"),
        (lambda o, x: o.rand_uniform(shape=(), like=x), True, "a random scalar for each rank is not supported"),
    ],
)
def test_collectives_of_what_is_alike_and_of_what_is_not(call: Any, varies: bool, message: str) -> None:
    with pytest.raises(opstage.MeshError, match=message) as caught:
        found_by(lambda outer, x: (under_the_rule(call, varies, outer, x).value,), [np.ones((8, 4))] * RANKS)
    assert "test_collectives.py" in str(caught.value)


OF_COLLECTIVES: dict[str, tuple[dict[str, Any], ...]] = {
    "all_gather": ({}, {"dim": 3}),
    "all_to_all": ({"split": 0, "join": 0}, {"split": 3, "join": 0}, {"split": 0, "join": 3}, {"split": 1, "join": 0}),
    **dict.fromkeys(("reduce_scatter", "shard"), ({}, {"dim": 3}, {"dim": 1})),
}


@pytest.mark.parametrize("name", sorted(vars(CollectiveOps).keys() & OPS - {"axis_index"}))
def test_docstrings_state_the_errors_of_collectives(name: str) -> None:
    """Of numbers and masks, of what varies over the ranks and of what does not, along axes that fit and that do not."""
    found: set[str] = set()
    for value in (np.ones((8, 3)), np.ones((8, 3), bool)):
        for varies in (True, False):
            for static in OF_COLLECTIVES.get(name, ({},)):
                call = lambda o, x, how=static: getattr(o, name)(x, axis=AXIS, **how)  # noqa: E731
                try:
                    found_by(lambda o, x, v=varies, call=call: (under_the_rule(call, v, o, x).value,), [value] * RANKS)
                except opstage.OpstageError as error:
                    found.add(type(error).__name__)
    assert found == set(stated(inspect.getdoc(getattr(opstage.Ops, name)) or ""))


def test_a_loop_with_a_collective_is_taken_by_all_ranks_together() -> None:
    def loop(outer: Any, x: Any) -> Any:
        body = lambda o, carry, _: (o.add(o.all_reduce(carry, axis=AXIS), x), None)  # noqa: E731
        return (outer.scan(body, x, None, length=2)[0],)

    for rank, value in enumerate(found_by(loop, RANK_VALUES)[0]):
        assert value[0] == 6 * RANKS + 6 + rank  # 0+1+2+3 = 6 on each; then 4·6 + 6, and one's own


def test_a_choice_with_collectives_is_by_what_all_ranks_have() -> None:
    def choose(outer: Any, x: Any, p: Any) -> Any:
        return (outer.cond(p, lambda o, v: o.all_reduce(v, axis=AXIS), lambda o, v: v, x),)

    for chosen, expected in ((True, [6.0] * RANKS), (False, [0.0, 1.0, 2.0, 3.0])):
        (out,) = found_by(choose, RANK_VALUES, [np.array(chosen)] * RANKS)
        assert [value[0] for value in out] == expected
    with pytest.raises(opstage.MeshError, match="which all ranks must reach alike"):
        found_by(choose, RANK_VALUES, APART)


def test_each_rank_chooses_for_itself_where_nothing_is_sent() -> None:
    choose = lambda o, x, p: (o.cond(p, lambda o, v: o.neg(v), lambda o, v: v, x),)  # noqa: E731
    (out,) = found_by(choose, RANK_VALUES, APART)
    assert [value[0] for value in out] == [0.0, 1.0, -2.0, -3.0]


def test_rows_of_a_draw_are_those_of_one_rank() -> None:
    for ranks in (2, 4):
        ops = mesh_of(f"data={ranks}")

        def draw(outer: Any, x: Any) -> Any:
            varying = Varying(outer, OVER)
            part = varying.shard(varying.wrap(x), axis=AXIS)
            mask = varying.bernoulli_mask(varying.const(0.5), shape=part.shape, site=1, like=part)
            noise = varying.rand_normal(shape=part.shape, site=2, like=part)
            return mask.value, noise.value, varying.rand_uniform(shape=(3,), site=3).value

        mask, noise, alike = ops.execute_each(draw, (ops.put(np.zeros((8, 5))),), 7)
        alone = make_interpreter(Options(dtype="float64"))

        def whole(outer: Any) -> Any:
            return (
                outer.bernoulli_mask(outer.const(0.5), shape=(8, 5), site=1),
                outer.rand_normal(shape=(8, 5), site=2),
                outer.rand_uniform(shape=(3,), site=3),
            )

        expected = alone.execute_each(whole, (), 7)
        for found, value in ((mask, expected[0]), (noise, expected[1])):
            np.testing.assert_array_equal(np.concatenate(numbers(ops, found)), value)
        for value in numbers(ops, alike):
            np.testing.assert_array_equal(value, expected[2])


def test_a_check_knows_collectives_of_no_mesh() -> None:
    assert opstage.check(lambda ops, x: ops.all_reduce(x, axis=AXIS), Spec("B 3")).ok
