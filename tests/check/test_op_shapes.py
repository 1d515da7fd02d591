"""Every op's shape rule against what happens: what it accepts runs, in the shapes that it promised, and NumPy agrees;
what it refuses does not run.

The shapes are those of the op's samples with random changes: another size, an axis more or less, two axes exchanged.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage.ops.errors import OpstageError, RangeError
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import TensorType
from opstage.options import Options
from tests.conformance.harness import inputs, leaves, program_of
from tests.samples import SAMPLES
from tests.samples.sample import Sample

FLOAT64 = Options(dtype="float64")
PLAIN = Options(dtype="float64", fast_kernels=False)

OPS: dict[str, list[Sample]] = {}
for _sample in SAMPLES:
    OPS.setdefault(_sample.op, []).append(_sample)

# Their references know the samples' own shapes, or ranks, alone.
FIXED_REFERENCES = {"reshape", "flatten", "squeeze", "unsqueeze", "full", "iota", "swap_adjacent_at_depth"}
FIXED_SHAPES = {
    *("matmul-infix", "bmm-infix", "scatter_add_row-static index, rank 3"),
    *(f"qr-{case}" for case in ("zeros, and not finite", "no rows", "no columns", "no matrices")),
}


class _Untouchable:
    """An operand that cannot be looked at: whoever answers without it has one answer for all."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


def is_general(sample: Sample) -> bool:
    """Whether the sample's reference computes its answer, so that it can be asked of other operands."""
    if sample.reference is None or sample.op in FIXED_REFERENCES or sample.id in FIXED_SHAPES:
        return False
    try:
        sample.reference(*(_Untouchable() for _ in inputs(sample)), **sample.static)
    except (AssertionError, TypeError, ValueError):
        return True
    return False


def changed(array: Any, rng: np.random.Generator) -> Any:
    """The array in another shape, its values among those that it had."""
    shape = list(array.shape)
    change = rng.integers(0, 6)
    if change == 0 or not shape:
        shape.insert(int(rng.integers(0, len(shape) + 1)), int(rng.integers(1, 4)))
    elif change == 1:
        del shape[int(rng.integers(0, len(shape)))]
    elif change == 2 and len(shape) > 1:
        i, j = rng.choice(len(shape), 2, replace=False)
        shape[i], shape[j] = shape[j], shape[i]
    else:
        axis = int(rng.integers(0, len(shape)))
        shape[axis] = int(rng.choice([0, 1, 2, 3, shape[axis] + 1, max(0, shape[axis] - 1)]))
    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def variants(sample: Sample, count: int) -> Iterator[tuple[Any, ...]]:
    """The sample's operands, and `count` times with one or two of them in another shape."""
    rng = np.random.default_rng([7, zlib.crc32(sample.id.encode())])
    args = inputs(sample)
    yield args
    values, structure = flatten(args)
    for _ in range(count if values else 0):
        new = list(values)
        together = rng.random() < 0.3 and len({value.shape for value in values}) == 1
        for i in range(len(new)) if together else rng.integers(0, len(new), rng.integers(1, 3)):
            seed = int(rng.integers(0, 2**31)) if not together else 0
            new[i] = changed(values[i], np.random.default_rng(seed + len(values[0].shape)))
        yield unflatten(structure, new)


def attempt(sample: Sample, args: tuple[Any, ...], options: Options) -> Any:
    """The results, or the error."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return opstage.run(program_of(sample), *args, options=options)
    except OpstageError as error:
        return error


def holds(sample: Sample, args: tuple[Any, ...]) -> bool:
    """Compare the rule's verdict with a run, and with the reference; whether the rule accepts."""
    report = opstage.check(program_of(sample), *args, options=FLOAT64)
    results = attempt(sample, args, PLAIN)
    what = f"{sample.id} of {[np.shape(a) for a in flatten(args)[0]]}"
    if not report.ok:
        assert isinstance(results, OpstageError), f"{what} runs, but: {report}"
        assert report.errors[0].reason in str(results), f"{what}: {results}, but: {report}"
        return False
    if isinstance(results, RangeError):  # of a table that has become too short for the indices
        return True
    assert not isinstance(results, Exception), f"{what} is accepted, but: {results}"
    types = optree.tree_leaves(report.outputs, is_leaf=lambda node: isinstance(node, TensorType))
    promised = [(type_.shape, type_.dtype) for type_ in types]
    assert promised == [(np.shape(r), r.dtype) for r in leaves(results)], what
    if sample.reference is not None and is_general(sample):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                expected = sample.reference(*args, **sample.static)
            except (
                TypeError,
                IndexError,
                ValueError,
            ):  # it iterates, or reads an entry that the sample's operands have
                return True
        assert [shape for shape, _ in promised] == [np.shape(e) for e in leaves(expected)], what
    return True


def verdicts_come_true(op: str, count: int) -> None:
    for sample in OPS[op]:
        for args in variants(sample, count):
            holds(sample, args)


@pytest.mark.parametrize("op", OPS)
def test_what_a_rule_says_comes_true(op: str) -> None:
    verdicts_come_true(op, 3)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_what_a_rule_says_of_many_more_shapes_comes_true(op: str) -> None:
    verdicts_come_true(op, 60)


def test_both_verdicts_are_met() -> None:
    met = [holds(sample, args) for sample in SAMPLES[::25] for args in variants(sample, 4)]
    assert len(met) // 5 < sum(met) < len(met) * 9 // 10
