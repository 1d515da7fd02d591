"""Elements in another order, repeated, in parts: against NumPy, of symbolic sizes, and the cotangents of slices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, derived
from opstage.ops.dims import Dim, DimScope
from opstage.ops.errors import RangeError, ShapeError
from opstage.ops.layout import BROADCAST_TO, FLATTEN, RESHAPE, SQUEEZE, SWAP_ADJACENT_AT_DEPTH
from opstage.ops.slicing import CONCAT, PAD, SLICE, STACK
from opstage.ops.types import FLOAT32, TensorType
from tests.ops.functions import FLOAT64, Row, assert_row, of

INTS = np.array([[3, -1, 2], [0, 7, 5]])
MASK = np.array([[True, False, True], [False, False, True]])

_STEPS: Any = ((0, 5, 1), (2, 9, 3), (9, 2, -3), (3, 3, 1), (4, 1, 1), (-2, 3, 2))

ROWS = [
    of("take", ((2, 4, 3), np.array([[1, 3], [0, 1]])), lambda x, i: np.take(x, i, 1), axis=1),
    of("take last", ((2, 3), np.array(2)), lambda x, i: np.take(x, i, 1), axis=-1),
    of("take none", ((2, 3), np.zeros(0, int)), lambda x, i: np.take(x, i, 1), gradient=False, axis=1),
    of("flip", ((2, 3, 2),), lambda x: np.flip(x, (0, 2)), axis=(0, -1)),
    of("flip ints", (INTS,), np.flip, gradient=False),
    of("flip empty", ((0, 3),), lambda x: x, gradient=False, axis=0),
    of("roll", ((2, 5),), lambda x: np.roll(x, -7, 1), shift=-7, axis=1),
    of("roll whole", ((2, 5),), lambda x: x, shift=4, axis=0),
    of("roll empty", ((0, 5),), lambda x: x, gradient=False, shift=4, axis=0),
    of("tile", ((2, 3),), lambda x: np.tile(x, (2, 1, 3)), repeats=(2, 1, 3)),
    of("tile few", ((2, 3),), lambda x: np.tile(x, 2), repeats=[2]),
    of("tile mask", (MASK,), lambda x: np.tile(x, (0, 2)), gradient=False, repeats=(0, 2)),
    of("repeat_interleave repeat", ((2, 3),), lambda x: np.repeat(x, 2, 1), repeats=2, axis=1),
    of("repeat_interleave repeat each", ((2, 3),), lambda x: np.repeat(x, (2, 0, 1), 1), repeats=(2, 0, 1), axis=-1),
    of("repeat_interleave repeat flat", (INTS,), lambda x: np.repeat(x, 3), gradient=False, repeats=3),
    of("repeat_interleave repeat none", ((2,),), lambda x: x[:0], gradient=False, repeats=(0, 0)),
    of("moveaxis", ((2, 3, 4),), lambda x: np.moveaxis(x, 0, -1), source=0, target=-1),
    of("swapaxes", ((2, 3, 4),), lambda x: np.swapaxes(x, 0, -1), first=0, second=-1),
    of("chunk", ((5, 2),), lambda x: (x[:2], x[2:4], x[4:]), chunks=3),
    of("chunk fewer", ((2, 6),), lambda x: (x[:, :2], x[:, 2:4], x[:, 4:]), chunks=4, axis=1),
    of("unbind", ((2, 3),), lambda x: tuple(x.T), axis=1),
    of("tril", ((2, 3, 4),), lambda x: np.tril(x, 1), k=1),
    of("triu", ((4, 3),), lambda x: np.triu(x, -1), k=-1),
    of("triu of nan", (np.array([[1.0, 2.0], [np.nan, np.inf]]),), lambda x: np.array([[1.0, 2.0], [0.0, np.inf]]),
        gradient=False),
    of("tril mask", (MASK,), np.tril, gradient=False),
    Row("eye", ((2,),), lambda ops, x: (derived.eye(ops, 2, 4, k=1), derived.eye(ops, 0),
        derived.eye(ops, 2, dtype="bool")), lambda x: (np.eye(2, 4, 1), np.eye(0), np.eye(2, dtype=bool)),
        gradient=False),
    *(
        Row(f"diagonal {k}", ((3, 4, 2),), lambda ops, x, k=k: derived.diagonal(ops, x, k=k, first=1, second=0),
            lambda x, k=k: np.diagonal(x, k, 1, 0), gradient=abs(k) < 3)
        for k in (-3, -2, 0, 1, 7)
    ),
    Row("diag", ((3,),), lambda ops, x: (derived.diag(ops, x, k=1), derived.diag(ops, x, k=-2)),
        lambda x: (np.diag(x, 1), np.diag(x, -2))),
    of("diag of a matrix", ((3, 2),), lambda x: np.diag(x, -1), k=-1),
    of("trace", ((2, 3, 3),), lambda x: np.trace(x, 0, 1, 2)),
    of("masked_fill", ((2, 3), MASK), lambda x, m: np.where(m, -np.inf, x), gradient=False, value=-np.inf),
    of("masked_fill by columns", ((2, 3), MASK[0]), lambda x, m: np.where(m, 2.0, x), value=2.0),
    of("meshgrid", ((2,), (3,), (2,)), lambda *xs: tuple(np.meshgrid(*xs, indexing="ij"))),
    of("meshgrid xy", ((2,), (3,)), lambda *xs: tuple(np.meshgrid(*xs)), indexing="xy"),
    Row("arange", ((1,),), lambda ops, x: tuple(derived.arange(ops, *a, step=s) for *a, s in _STEPS),
        lambda x: tuple(np.array(range(*a), int) for a in _STEPS), gradient=False),
    Row("linspace", ((1,),), lambda ops, x: tuple(derived.linspace(ops, -1, 0.3, num=n) for n in (0, 1, 2, 7)),
        lambda x: tuple(np.linspace(-1, 0.3, n) for n in (0, 1, 2, 7)), gradient=False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_is_numpys(row: Row) -> None:
    assert_row(row)


def shape(call: Any, *specs: str) -> str:
    report = opstage.check(call, *map(opstage.Spec, specs))
    assert report.ok and not report.conditions, report
    return " ".join(map(str, report.outputs.shape))


@pytest.mark.parametrize(
    ("call", "spec", "expected"),
    [
        (lambda ops, x: derived.flip(ops, x), "B N", "B N"),
        (lambda ops, x: derived.roll(ops, x, shift=5, axis=1), "B N", "B N"),
        (lambda ops, x: derived.tile(ops, x, repeats=(2, 3)), "B N", "2*B 3*N"),
        (lambda ops, x: derived.repeat_interleave(ops, x, repeats=2, axis=1), "B N", "B 2*N"),
        (lambda ops, x: derived.repeat_interleave(ops, x, repeats=2), "B N", "2*B*N"),
        (lambda ops, x: derived.tril(ops, x, k=-1), "B N M", "B N M"),
        (lambda ops, x: derived.diagonal(ops, x, first=1, second=2), "B N N", "B N"),
        (lambda ops, x: derived.trace(ops, x), "B N N", "B"),
        (lambda ops, x: derived.eye(ops, x.shape[0]), "N", "N N"),
        (lambda ops, x: derived.diag(ops, x, k=-2), "N", "N + 2 N + 2"),
        (lambda ops, x: derived.meshgrid(ops, x, x)[0], "N", "N N"),
        (lambda ops, x: derived.arange(ops, x.shape[0]), "N", "N"),
        (lambda ops, x: derived.swapaxes(ops, x, first=0, second=-1), "A B C", "C B A"),
    ],
)
def test_sizes_may_be_named(call: Any, spec: str, expected: str) -> None:
    assert shape(call, spec) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, x: derived.flip(ops, x, axis=2), r"^flip at .*axis 2 is out of range for a tensor of rank 2"),
        (lambda ops, x: derived.roll(ops, x, shift=x, axis=0), r"^roll at .*shift must be an integer but is "),
        (lambda ops, x: derived.tile(ops, x, repeats=(-1,)), r"^tile at .*a repeat must be at least 0 but is -1"),
        (lambda ops, x: derived.repeat_interleave(ops, x, repeats=(1,), axis=0), r"repeats has 1 entries but axis 0"),
        (lambda ops, x: derived.chunk(ops, x, chunks=0), r"^chunk at .*chunks must be at least 1 but is 0"),
        (lambda ops, x: derived.tril(ops, derived.trace(ops, x)), r"^tril at .*x must be a matrix, or a stack of them"),
        (lambda ops, x: derived.diagonal(ops, x, second=0), r"^diagonal at .*first and second are both axis 0 of x"),
        (lambda ops, x: derived.diag(ops, ops.unsqueeze(x, axis=0)), r"^diag at .*x must be a vector or a matrix"),
        (lambda ops, x: derived.meshgrid(ops, x), r"^meshgrid at .*must be a vector but one is \(2, 3\)"),
        (lambda ops, x: derived.meshgrid(ops, indexing="yx"), r"indexing must be 'ij' or 'xy' but is 'yx'"),
        (lambda ops, x: derived.arange(ops, 2.5), r"^arange at .*stop must be an integer or a size but is 2\.5"),
        (lambda ops, x: derived.arange(ops, 3, step=0), r"^arange at .*step must not be 0"),
        (lambda ops, x: derived.linspace(ops, 0, 1, num=-1), r"^linspace at .*num must be at least 0 but is -1"),
        (lambda ops, x: derived.linspace(ops, 0, 1, num=2**70), r"^linspace at .*num must be at most 16777216 but"),
    ],
)  # fmt: skip
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        opstage.run(call, np.ones((2, 3)), options=FLOAT64)


def test_an_unknown_number_of_tensors_is_refused() -> None:
    report = opstage.check(lambda ops, x: derived.unbind(ops, x), opstage.Spec("N 3"))
    assert "must be a number, not a named size" in str(report)


@pytest.mark.parametrize("index", [-1, 3])
def test_take_is_out_of_range_as_gather_rows(index: int) -> None:
    x, i = np.arange(6.0).reshape(2, 3), np.array([0, index])
    with pytest.raises(RangeError, match=f"index {index}"):
        opstage.run(lambda ops, x, i: derived.take(ops, x, i, axis=1), x, i)
    zeros = opstage.run(lambda ops, x, i: derived.take(ops, x, i, axis=1, mode="zero"), x, i)
    np.testing.assert_array_equal(zeros, [[0, 0], [3, 0]])


@pytest.mark.parametrize("dtype", ["float32", "exact"])
def test_numbers_made_from_nothing(dtype: Any) -> None:
    made = opstage.run(lambda ops: derived.linspace(ops, 0, 1, num=4), options=opstage.Options(dtype=dtype))
    if dtype == "exact":
        assert [str(v) for v in made] == ["0", "1/3", "2/3", "1"]
    else:
        assert made.dtype == np.float32
        np.testing.assert_array_equal(made, np.linspace(0, 1, 4).astype(np.float32))


# Shape rules of layout ops at symbolic sizes: what is inferred, proved and refused ------------------------------------

SCOPE = DimScope()
B, M, N, S, T = (SCOPE.dim(name) for name in "BMNST")


def infer(primitive: Any, *shapes: tuple[Dim, ...], **static: Any) -> tuple[Dim, ...]:
    """The result's shape; nothing may be left undecided."""
    (out,) = primitive.infer(tuple(TensorType(shape, FLOAT32) for shape in shapes), static)
    assert not SCOPE.conditions
    return out.shape  # type: ignore[no-any-return]


def refused(match: str, primitive: Any, *shapes: tuple[Dim, ...], **static: Any) -> None:
    with pytest.raises(ShapeError, match=match):
        infer(primitive, *shapes, **static)


def test_reshape_infers_by_exact_division() -> None:
    assert infer(RESHAPE, (B, T, 768), shape=(B, T, 12, 64)) == (B, T, 12, 64)
    assert infer(RESHAPE, (B, T, 768), shape=(-1, 768)) == (B * T, 768)
    assert infer(RESHAPE, (B, T, 768), shape=(B, -1, 64)) == (B, 12 * T, 64)
    assert infer(FLATTEN, (B, T, 8), start=1, end=2) == (B, 8 * T)
    refused('N=3; add where=.*"N % 2 == 0"', RESHAPE, (B, N), shape=(B, 2, -1))
    refused("fails at every allowed size", RESHAPE, (B, 3), shape=(B, 4))


def test_broadcasting_stretches_what_is_literally_one() -> None:
    assert infer(BROADCAST_TO, (N, 1), shape=(B, N, T)) == (B, N, T)
    refused('where=.*"M == N"', BROADCAST_TO, (N,), shape=(M,))
    refused('where=.*"N == 1"', SQUEEZE, (2, N), axes=(1,))


def test_joined_sizes_add_up() -> None:
    assert infer(CONCAT, (B, T), (B, S), (B, 1), axis=1) == (B, S + T + 1)
    assert infer(STACK, (B, T), (B, T), axis=1) == (B, 2, T)
    assert infer(SWAP_ADJACENT_AT_DEPTH, (B, T, N), depth=1) == (B, N, T)
    refused('where=.*"B == N"', CONCAT, (B, T), (N, T), axis=1)


def test_slices_end_inside() -> None:
    assert infer(SLICE, (B, T + S), axis=1, start=T, length=S, step=1) == (B, S)
    assert infer(SLICE, (B, T), axis=1, start=T - 1, length=1, step=1) == (B, 1)
    assert infer(SLICE, (B, 2 * N), axis=1, start=1, length=N, step=2) == (B, N)
    assert infer(SLICE, (B, T), axis=1, start=1, length=T // 2, step=2) == (B, T // 2)
    refused('where=.*"T >= 4"', SLICE, (B, T), axis=1, start=0, length=4, step=1)
    refused(
        "start=2, .* it needs .* entries but there are T; fails at T=2",
        SLICE,
        (B, T),
        axis=1,
        start=2,
        length=T // 2,
        step=2,
    )
    refused("it needs T . 1 entries but there are T", SLICE, (B, T), axis=1, start=T, length=1, step=1)


def test_padding_adds_up() -> None:
    assert infer(PAD, (B, T), padding=((0, 0), (1, S)), value=0.0, interior=(0, 0)) == (B, S + T + 1)
    assert infer(PAD, (B, T), padding=((0, 0), (0, 2)), value=0.0, interior=(0, 2)) == (B, 3 * T)
    refused("take cells away use ops.slice", PAD, (B, T), padding=((0, 0), (T - 5, 0)), value=0.0, interior=(0, 0))
    refused("must have entries to pad between", PAD, (T - 1,), padding=((0, 0),), value=0.0, interior=(1,))


# Slices of one tensor: their cotangents are joined, whatever of the tensor they leave out or have in common -----------

SHAPE = (3, 12)
BACKENDS = {"eager": Options(), "plain": Options(fast_kernels=False), "compiled": Options(backend="compiled")}


class Cut(NamedTuple):
    """A slice of x: along which axis, from where, how many, and how far apart."""

    axis: int
    start: int
    length: int
    step: int = 1

    @property
    def index(self) -> tuple[slice, ...]:
        stop = self.start + self.length * self.step
        return (slice(None),) * self.axis + (slice(self.start, stop, self.step),)


CASES: dict[str, list[Cut]] = {
    "one": [Cut(1, 2, 5)],
    "a split": [Cut(1, 0, 4), Cut(1, 4, 4), Cut(1, 8, 4)],
    "a split of other order": [Cut(1, 8, 4), Cut(1, 0, 4), Cut(1, 4, 4)],
    "gaps": [Cut(1, 1, 2), Cut(1, 5, 3), Cut(1, 9, 1)],
    "the same ones twice": [Cut(1, 0, 6), Cut(1, 6, 6), Cut(1, 0, 6), Cut(1, 6, 6)],
    "neighbours": [Cut(1, 0, 11), Cut(1, 1, 11)],
    "windows of three": [Cut(1, i, 3) for i in range(10)],
    "nested": [Cut(1, 0, 12), Cut(1, 3, 4), Cut(1, 4, 1), Cut(1, 9, 2)],
    "both axes": [Cut(0, 0, 1), Cut(1, 0, 6), Cut(0, 1, 2), Cut(1, 6, 6)],
    "every second": [Cut(1, 0, 6, 2), Cut(1, 1, 6, 2), Cut(1, 0, 3), Cut(1, 3, 9)],
    "empty ones": [Cut(1, 0, 0), Cut(1, 0, 5), Cut(1, 5, 0), Cut(1, 5, 7), Cut(1, 12, 0)],
}


def program(cuts: list[Cut], ops: Any, x: Any) -> Any:
    """Σ wᵢ·yᵢ² over slices y of x·x, which a sum of all of them reads as well."""
    y = ops.mul(x, x)
    total = ops.sum(y)
    for i, cut in enumerate(cuts):
        part = ops.slice(y, axis=cut.axis, start=cut.start, length=cut.length, step=cut.step)
        total = ops.add(total, ops.scale(ops.sum(ops.mul(part, part)), c=i + 1.0))
    return total


def weights(cuts: list[Cut]) -> Any:
    found = np.zeros(SHAPE)
    for i, cut in enumerate(cuts):
        found[cut.index] += i + 1.0
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_gradient(name: str, backend: str) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    cuts = CASES[name]
    _, found = opstage.value_and_grad(lambda ops, x: program(cuts, ops, x), x, options=BACKENDS[backend])
    np.testing.assert_allclose(found, 2 * x + 4 * weights(cuts) * x**3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_second_derivative(name: str) -> None:
    rng = np.random.default_rng(1)
    x, v = (rng.standard_normal(SHAPE) for _ in range(2))
    cuts = CASES[name]
    found = opstage.hvp(lambda ops, x: program(cuts, ops, x), (x,), (v,), options=Options(dtype="float64"))
    np.testing.assert_allclose(found[0], (2 + 12 * weights(cuts) * x**2) * v, rtol=1e-10)


def test_cotangents_of_several_outputs() -> None:
    """Slices of each output of one op find their own: here of the last sum and of all products of a loop."""

    def of_both(ops: Any, x: Any) -> Any:
        def step(ops: Any, carry: Any, row: Any) -> tuple[Any, Any]:
            return ops.add(carry, row), ops.mul(row, row)

        last, squares = ops.scan(step, ops.slice(x, axis=0, start=0, length=1), ops.unsqueeze(x, axis=1))
        first, rest = ops.split(last, sizes=(1, 3), axis=1)
        early, late = ops.split(squares, sizes=(2, 3), axis=0)
        return ops.add(ops.sum(ops.mul(first, first)) + ops.sum(rest), ops.sum(early) + 3.0 * ops.sum(late))

    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    _, found = opstage.value_and_grad(of_both, x)
    of_last = np.ones_like(x)
    of_last[:, 0] = 2 * (x.sum(0) + x[0])[0]
    of_last[0] *= 2
    factors = np.array([1, 1, 3, 3, 3], np.float32)[:, np.newaxis]
    np.testing.assert_allclose(found, of_last + 2 * factors * x, rtol=1e-5)


def test_what_is_not_finite_stays_where_it_was() -> None:
    x = np.array([1.0, np.inf, np.nan, 2.0], np.float32)
    cuts = [Cut(0, i, 1) for i in range(4)]
    _, found = opstage.value_and_grad(lambda ops, x: program(cuts, ops, x), x)
    assert np.isfinite(found).tolist() == [True, False, False, True]


def _names(spec: Any, pieces: int) -> list[str]:
    def rows(ops: Any, x: Any) -> Any:
        total = ops.sum(x)
        size = x.shape[0] // pieces
        for i in range(pieces):
            part = ops.slice(x, axis=0, start=i * size, length=size)
            total = ops.add(total, ops.sum(ops.mul(part, part)))
        return total

    def gradient(ops: Any, x: Any) -> Any:
        return opstage.transform.grad(ops, rows, x)

    return [equation.primitive.name for equation in opstage.record(gradient, spec).body.equations]


@pytest.mark.parametrize("pieces", [3, 50])
def test_rows_of_a_loop_that_is_written_out_are_joined_once(pieces: int) -> None:
    for spec in (Spec((600, 4)), Spec((f"{pieces}*n", 4))):
        names = _names(spec, pieces)
        assert (names.count("pad"), names.count("concat")) == (0, 1)


def test_a_pullback_that_is_kept_can_be_used_again() -> None:
    x = np.arange(6.0, dtype=np.float32)

    def halves(ops: Any, x: Any) -> Any:
        left, right = ops.split(x, sizes=(3, 3), axis=0)
        return ops.concat([ops.mul(left, right), right], axis=0)

    _, pullback = opstage.vjp(halves, x)
    for seed in (np.ones(6, np.float32), np.arange(6.0, dtype=np.float32)):
        g, h = seed[:3], seed[3:]
        np.testing.assert_array_equal(pullback(seed)[0], np.concatenate([g * x[3:], g * x[:3] + h]))
