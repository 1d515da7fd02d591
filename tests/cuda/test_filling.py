"""First values of parameters, made on the device: the host's bits, and no host tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from opstage import Options, ScalarModuleDef, init
from opstage.init import Declaration, Plan
from opstage.interpreters.registry import make_interpreter
from opstage.ops.errors import UsageError
from opstage.ops.types import FLOAT32

CUDA = Options(device="cuda", seed=7)
DECLARED = {
    "a": Declaration((7, 5), init.xavier_uniform()),
    "b": Declaration((5,), init.zeros),
    "c": Declaration((2, 3, 2), init.normal(0.5, 2.0)),
    "d": Declaration((3,), init.uniform(1 / 3, math.pi)),
}


def loss(ops: Any, params: Any) -> Any:
    parts = [ops.sum(ops.mul(params[name], params[name])) for name in sorted(params)]
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    return total


def filled(scheme: init.Elementary, shape: tuple[int, ...]) -> Any:
    interpreter = make_interpreter(CUDA)
    return interpreter.get(interpreter.fill(scheme, shape, FLOAT32))


@pytest.mark.parametrize(
    "scheme",
    [
        init.uniform(-1 / 3, 1 / 3, seed=0),
        init.uniform(0.1, 1e6, seed=2**64 - 1),
        init.uniform(-1e-30, 1e-30, seed=5),
        init.uniform(2.0, 2.0, seed=5),
        init.zeros,
        init.Constant(0.1),
    ],
    ids=str,
)
def test_uniform_and_constant_have_the_hosts_bits(scheme: init.Elementary) -> None:
    expected = scheme.materialise((31, 33))
    assert filled(scheme, (31, 33)).tobytes() == expected.tobytes()


def test_normal_is_the_hosts_within_a_few_roundings() -> None:
    scheme = init.normal(0.25, 3.0, seed=11)
    np.testing.assert_array_max_ulp(filled(scheme, (31, 33)), scheme.materialise((31, 33)), maxulp=4)


def test_the_product_has_the_same_bits_whether_or_not_it_is_joined_with_the_sum() -> None:
    """Its two parts are exact, so a compiler that rounds once where the kernel writes two roundings changes nothing."""
    width = np.float64(2 / 3)
    upper = (width.view(np.uint64) >> np.uint64(24) << np.uint64(24)).view(np.float64)
    lower = width - upper
    for u in (1, 2**24 - 1, 0xABCDEF, 0x555555):
        for part in (upper, lower):
            numerator, denominator = float(part).as_integer_ratio()
            product = (float(part) * u).as_integer_ratio()
            assert product[0] * denominator == numerator * u * product[1]


def test_a_dtype_without_a_form_on_the_device_is_refused() -> None:
    module = ScalarModuleDef(DECLARED, loss).instantiate(CUDA.replace(dtype="float64", validate=False))
    with pytest.raises(UsageError, match="float64 is not supported on the device"):
        module.forward()


def test_every_shipped_model_declares_what_a_device_can_fill() -> None:
    from opstage.interpreters.eager_cuda.kernels.random import FILLS
    from opstage.models import MODELS, model

    for name in MODELS:
        made = model(name)
        for placement in Plan.of(made.init).placements(made.init):
            assert type(placement.initialiser) in FILLS, (name, placement.path)
