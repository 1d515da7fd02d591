"""A fused optimizer update gives the bits of its decomposition: that order of operations is its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.options import Options

# name: (signed state tensors, nonnegative ones, scalars, statics)
UPDATES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "sgd_update": (0, 0, 1, {}),
    "momentum_update": (1, 0, 1, {"momentum": 0.9, "nesterov": False}),
    "momentum_update nesterov": (1, 0, 1, {"momentum": 0.9, "nesterov": True}),
    "adagrad_update": (0, 1, 1, {"eps": 1e-10}),
    "rmsprop_update": (0, 1, 1, {"alpha": 0.99, "eps": 1e-8}),
    "adadelta_update": (0, 2, 1, {"rho": 0.9, "eps": 1e-6}),
    "adam_update": (1, 1, 3, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}),
    "adamw_update": (1, 1, 3, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}),
}


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UPDATES)
def test_fused_updates_are_bitwise_their_decomposition(name: str, dtype: str, weight_decay: float) -> None:
    signed, nonnegative, scalar_count, static = UPDATES[name]
    static = {**static, "weight_decay": weight_decay}
    options = Options().replace(dtype=dtype)
    core = {primitive: kernel for primitive, kernel in kernel_table(dtype, False).items() if primitive.core}
    decomposed = NumpyOps(options, core)
    rng = np.random.default_rng(5)
    for shape in ((), (1,), (33, 65), (3, 5, 7), (20011,)):
        for magnitude in (1e-5, 1.0, 1e5):
            tensors = [magnitude * rng.standard_normal(shape) for _ in range(2 + signed)]
            tensors += [magnitude**2 * rng.uniform(0, 1, shape) for _ in range(nonnegative)]
            scalars = [rng.uniform(0.001, 1.0) for _ in range(scalar_count)]
            operands = [np.asarray(x, dtype=dtype) for x in (*tensors, *scalars)]
            if len(shape) == 2:
                operands = [np.asfortranarray(x)[:, ::2] if x.ndim == 2 else x for x in operands]
            before = [x.copy() for x in operands]

            def program(ops: Any) -> tuple[Any, ...]:
                result = getattr(ops, name.split()[0])(*operands, **static)
                return result if isinstance(result, tuple) else (result,)

            expected = decomposed.execute(program, ())
            for fast_kernels in (False, True):
                actual = NumpyOps(options.replace(fast_kernels=fast_kernels)).execute(program, ())
                for a, e in zip(actual, expected, strict=True):
                    assert a.dtype == e.dtype == np.dtype(dtype)
                    np.testing.assert_array_equal(a, e, strict=True)
            assert all(np.array_equal(x, y) for x, y in zip(operands, before)), "a kernel changed an operand"
