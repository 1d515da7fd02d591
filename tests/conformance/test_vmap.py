"""`vmap` of every op, on every choice of batched operands, against a loop over the examples.

Values, gradients with the tape above and beneath the batch, and tangents. Draws are compared in tests/transforms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import Options, transform
from opstage.ops.random import DRAWS
from tests.conformance.harness import SEED, assert_close, is_float, leaves
from tests.samples import SAMPLES
from tests.samples.parts import by_op
from tests.samples.sample import Sample

FLOAT64 = Options(dtype="float64", fast_kernels=False)
BATCH = 3
TIGHT, DERIVED = (1e-9, 1e-11), (1e-7, 1e-9)


def choices(count: int) -> list[tuple[bool, ...]]:
    """All operands, each alone, and all but one."""
    alone = [tuple(j == i for j in range(count)) for i in range(count)]
    return list(
        dict.fromkeys([(True,) * count, *alone, *[tuple(not flag for flag in row) for row in alone if count > 2]])
    )


def drawn(sample: Sample) -> list[list[Any]]:
    rows = [leaves(sample.arrays(np.random.default_rng([SEED, i]))) for i in range(BATCH)]
    return [list(map(np.asarray, row)) for row in rows]


def of_one_shape(sample: Sample) -> bool:
    first, *others = drawn(sample)
    return bool(first) and all([x.shape for x in row] == [x.shape for x in first] for row in others)


CASES = by_op([s for s in SAMPLES if s.op not in {p.name for p in DRAWS} and of_one_shape(s)]).values()


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(sample, id=sample.id, marks=pytest.mark.slow if i else ())
        for of_op in CASES
        for i, sample in enumerate(of_op)
    ],
)
def test_op_on_a_batch_equals_a_loop(sample: Sample) -> None:
    rows = drawn(sample)
    structure = optree.tree_structure(sample.arrays(np.random.default_rng(SEED)))
    floats = tuple([i for i, x in enumerate(rows[0]) if is_float(x)])

    def program(ops: Any, *refs: Any) -> Any:
        return sample.apply(ops, *optree.tree_unflatten(structure, refs))

    def total(ops: Any, *refs: Any) -> Any:
        """A scalar to differentiate: another weight for each element of the results."""
        outs = [out for out in leaves(program(ops, *refs)) if out.dtype.kind == "f"]
        weights = [np.cos(np.arange(np.prod(out.shape)) + 0.3).reshape(out.shape) for out in outs]
        return ops.sum(ops.stack([ops.sum(ops.mul(out, ops.const(w))) for out, w in zip(outs, weights)]))

    def gradients(ops: Any, *refs: Any) -> Any:
        found = transform.vjp(ops, total, *refs)[1](ops.const(1.0))
        return [found[i] for i in floats]

    def tangent(ops: Any, *refs: Any) -> Any:
        moves = tuple(
            [ops.const(np.sin(np.arange(x.size) + 1.0).reshape(x.shape)) if is_float(x) else None for x in rows[0]]
        )
        return transform.jvp(ops, total, refs, moves)[1]

    for flags in choices(len(rows[0])):
        axes = tuple([0 if flag else None for flag in flags])
        batch = [np.stack([row[i] for row in rows]) if flag else rows[0][i] for i, flag in enumerate(flags)]
        each = [[row[i] if flag else rows[0][i] for i, flag in enumerate(flags)] for row in rows]

        def same(f: Any, tolerance: Any, what: str) -> Any:
            """f batched, compared with f on each example; returns the results of the loop."""
            wanted = [leaves(opstage.run(f, *row, options=FLOAT64)) for row in each]
            found = opstage.run(opstage.vmap(f, axes), *batch, options=FLOAT64)
            assert_close(found, list(map(np.stack, zip(*wanted))), tolerance, f"{what} of {sample.id}, {flags}")
            return wanted

        values = same(program, TIGHT, "value")
        if sample.order < 1 or not floats or not any(map(is_float, values[0])):
            continue
        wanted = same(gradients, DERIVED, "gradient above")
        same(tangent, DERIVED, "tangent")

        def beneath(ops: Any, *refs: Any) -> Any:
            return ops.sum(transform.vmap(ops, total, *refs, in_axes=axes))

        found = opstage.value_and_grad(beneath, *batch, wrt=floats, options=FLOAT64)[1]
        expected = [np.stack(g) if flags[i] else np.sum(g, axis=0) for i, g in zip(floats, zip(*wanted))]
        assert_close(found, expected, DERIVED, f"gradient beneath of {sample.id}, {flags}")
