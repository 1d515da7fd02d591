"""Slices of one tensor: their cotangents are joined, whatever of the tensor they leave out or have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options, Spec

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
