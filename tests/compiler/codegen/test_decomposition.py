"""Bodies with their composites written out: those of ops with kernels alone stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

import opstage
from opstage import Options, Spec
from opstage.compiler.codegen.composites import Expander
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.graph.passes.cse import body_key
from opstage.ops.body import Body
from opstage.transforms.tracer import constants, evaluate

X = np.random.default_rng(0).standard_normal((2, 3))
FLOAT64 = Options(dtype="float64")


def body_of(program: Any) -> Body:
    return opstage.check(program, Spec("2 3"), options=FLOAT64).program.body


def run(body: Body) -> Any:
    ops = NumpyOps(FLOAT64)
    return evaluate(ops, body, (X,), constants(ops, body))


def test_a_body_without_composites_stays_as_it_is() -> None:
    def looped(ops: Any, x: Any) -> Any:
        x = ops.add(ops.tanh(x), ops.const(np.ones((2, 3))))
        return ops.scan(lambda ops, h, row: (ops.mul(h, row), h), ops.reduce_sum(x, axis=0), x)

    body = body_of(looped)
    keep = {equation.primitive for equation in body.equations}
    assert Expander(lambda primitive, types, static: primitive in keep, loops=False).written_out(body) is body


def test_one_composite_among_others_is_written_out_where_it_stands() -> None:
    body = body_of(lambda ops, x: ops.softmax(ops.tanh(x), axis=1))
    written = Expander(lambda *_: False, loops=False).written_out(body)
    assert any(not equation.primitive.core for equation in body.equations)
    assert all(equation.primitive.core for equation in written.equations)
    assert body_key(written) != body_key(body)
    np.testing.assert_allclose(run(written)[0], run(body)[0], rtol=1e-14)
