"""An update computed as one op has the bits of its program run op by op: that order of operations is its definition."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import optim
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.ops.primitive import Primitive
from opstage.options import Options
from opstage.transforms.transparent import Transparent
from tests.optim.updates import updated

EDGES = np.array([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 1e30, -1e30, np.inf, -np.inf, np.nan, 3.0])

# name: (optimizer without decay, signed slots, nonnegative slots)
UPDATES: dict[str, tuple[optim.Optimizer, int, int]] = {
    "sgd": (optim.sgd(), 0, 0),
    "momentum": (optim.momentum(), 1, 0),
    "nesterov": (optim.nesterov(), 1, 0),
    "adagrad": (optim.adagrad(), 0, 1),
    "rmsprop": (optim.rmsprop(), 0, 1),
    "adadelta": (optim.adadelta(), 0, 2),
    "adam": (optim.adam(), 1, 1),
    "adamw": (optim.adamw(weight_decay=0.0), 1, 1),
}
BACKENDS: tuple[Any, ...] = ("eager", "compiled")


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UPDATES)
def test_one_op_has_the_bits_of_the_program(name: str, dtype: Any, weight_decay: float) -> None:
    optimizer, signed, nonnegative = UPDATES[name]
    optimizer = optimizer.having(weight_decay=weight_decay)
    options = Options(dtype=dtype)
    core = {primitive: kernel for primitive, kernel in kernel_table(dtype, False).items() if primitive.core}
    plain = NumpyOps(options, core)
    rng = np.random.default_rng(5)
    count = signed + nonnegative
    one_op, program = updated(optimizer), updated(optimizer, optimizer.update)
    given = [
        [EDGES if i < 2 + signed else np.abs(np.roll(EDGES, 5 * i)) for i in range(2 + count)],
        *[
            [*(size * rng.standard_normal((2 + signed, *shape))), *(size**2 * rng.random((nonnegative, *shape)))]
            for shape in ((), (1,), (0, 4), (33, 65), (20011,))
            for size in (1e-5, 1.0, 1e5)
        ],
    ]
    for tensors in given:
        scalars = [rng.uniform(0.001, 1.0) for _ in optimizer.step_scalars(1)]
        operands = [np.asarray(x, dtype=dtype) for x in (*tensors, *scalars)]
        if operands[0].ndim == 2:
            operands = [np.asfortranarray(x)[:, ::2] if x.ndim == 2 else x for x in operands]
        before = [x.copy() for x in operands]
        expected = plain.execute(lambda ops: program(ops, *operands), ())
        eager = [NumpyOps(options.replace(fast_kernels=fast)) for fast in (False, True)]
        found = [ops.execute(lambda ops: one_op(ops, *operands), ()) for ops in eager]
        found += [opstage.run(one_op, *operands, options=options.replace(backend=backend)) for backend in BACKENDS]
        for each in found:
            for a, e in zip(each, expected, strict=True):
                np.testing.assert_array_equal(a, e, strict=True)
        for x, y in zip(operands, before):
            np.testing.assert_array_equal(x, y, err_msg="a kernel changed an operand")


@pytest.mark.parametrize("optimizer", [optim.sgd(weight_decay=Fraction(1, 3)), optim.nesterov(momentum=Fraction(1, 2))])
def test_fractions_stay_exact_where_tensors_are(optimizer: Any) -> None:
    p, g, b, lr = (np.array([Fraction(n, 7)], object) for n in (1, 2, 3, 5))
    slots = optimizer.num_slots
    program = updated(optimizer)
    exact, *_ = opstage.run(program, p, g, *[b] * slots, lr[0], options=Options(dtype="exact"))
    floats = [np.asarray(x, np.float64) for x in (p, g, *[b] * slots, lr[0])]
    near, *_ = opstage.run(program, *floats, options=Options(dtype="float64"))
    assert all(type(x) is Fraction for x in exact)
    np.testing.assert_allclose(near, exact.astype(float), rtol=1e-14)


class Noting(Transparent[Any]):
    """Notes which ops are bound."""

    def __init__(self, inner: Any):
        super().__init__(inner)
        self.bound: list[Primitive] = []

    def bind(self, primitive: Primitive, refs: Any, static: Any, /) -> Any:
        self.bound.append(primitive)
        return self.inner.bind(primitive, refs, static)


def test_an_update_is_one_op_for_all_optimizers_of_the_same_numbers() -> None:
    ops, x, lr = Noting(NumpyOps(Options())), np.ones((3, 4), np.float32), np.asarray(0.1, np.float32)
    for momentum in (0.9, 0.9, 0.0, -0.0):
        optim.momentum(momentum=momentum).updater(ops, x, x, (x,), {"lr": lr})
    first, again, zero, negative = ops.bound
    assert first is again and first.name == "momentum_update"
    assert len({first, zero, negative}) == 3, "-0.0 is another factor than 0.0"
