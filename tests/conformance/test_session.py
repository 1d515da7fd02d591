"""Every op on the session, eager and recorded: its value, and its forward derivative, are those of a program."""

from __future__ import annotations

import numpy as np
import optree
import pytest

import opstage
from opstage.options import Options
from opstage.training.session import Session
from tests.conformance.harness import SEED, assert_close, inputs, is_float, leaves, program_of, random_like
from tests.conformance.xfails import EXEMPT_FROM_SECOND_ORDER
from tests.samples import SAMPLES
from tests.samples.parts import all_samples
from tests.samples.sample import Sample

FLOAT64 = Options(dtype="float64")
EXACT = (1e-12, 1e-12)


@pytest.mark.parametrize("backend", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sample", all_samples(SAMPLES))
def test_session(sample: Sample, backend: str) -> None:
    args = inputs(sample)
    session = Session(FLOAT64.replace(backend=backend))
    refs = optree.tree_map(lambda a: session.leaf(a) if is_float(a) else session.input(a), args)
    outs = leaves(sample.apply(session, *refs))
    expected = opstage.run(program_of(sample), *args, options=FLOAT64)
    assert_close([session.get_value(out) for out in outs], leaves(expected), EXACT, f"value of {sample.id}")
    if sample.order < 1 or sample.op in EXEMPT_FROM_SECOND_ORDER:
        return

    v = random_like(np.random.default_rng(SEED), args)
    pairs = zip(optree.tree_leaves(refs, none_is_leaf=True), optree.tree_leaves(v, none_is_leaf=True))
    tangents = {leaf: tangent for leaf, tangent in pairs if tangent is not None}
    _, expected = opstage.jvp(program_of(sample), args, v, options=FLOAT64)
    moved = [session.jvp_all(out, tangents) for out in outs if is_float(session.get_value(out))]
    assert_close(moved, [t for t in leaves(expected) if is_float(t)], EXACT, f"jvp of {sample.id}")
