"""The conformance suite's samples on a GPU, in memory that holds nan before a kernel writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu.probe import find_device
from opstage.ops.types import FLOAT32, TensorType
from tests.cuda.test_conformance import (  # noqa: F401  # pytest runs what stands here
    test_an_interpreter_keeps_its_device,
    test_bad_call,
    test_first_derivatives,
    test_second_derivatives,
    test_values,
    test_what_a_device_has_not_is_refused,
)
from tests.cuda.test_device import (  # noqa: F401
    test_a_bad_index_leaves_the_parameters_as_they_were,
    test_freeing_twice_is_harmless_and_reading_afterwards_is_an_error,
    test_memory_is_given_back_when_the_last_who_shares_it_is_gone,
    test_the_first_op_with_a_bad_index_is_named_when_a_value_is_read_back,
)

from .here import REHEARSAL


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    device: Any = find_device()
    allocate = type(device).allocate

    def with_nan(self: Any, nbytes: int) -> Any:
        block = allocate(self, nbytes)
        block.fill(0xFF, stream=self._stream)
        return block

    monkeypatch.setattr(type(device), "allocate", with_nan)
    yield


@pytest.mark.parametrize("count", [1, 255, 256, 257, 100_003, 2**24 + 3])
def test_what_is_uploaded_comes_back(count: int) -> None:
    """Also arrays that are longer than the pinned memory, which the copies go through in pieces."""
    device = find_device()
    array = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    np.testing.assert_array_equal(device.download(device.upload(array)), array)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (17, 33, 65), (128, 128, 128), *([] if REHEARSAL else [(1000, 10, 4096), (4096, 4096, 3)])]
)
@pytest.mark.parametrize(("precision", "rounding"), [("fp32", 2.0**-23), ("tf32", 2.0**-10), ("bf16", 2.0**-7)])
@pytest.mark.parametrize("batch", [(), (5,)])
def test_products(shape: tuple[int, int, int], precision: Any, rounding: float, batch: tuple[int, ...]) -> None:
    """Beside float64. Operands that were rounded make an error that is a walk of √k steps. A sum of k terms in float32
    rounds partial sums, which grow as √i: that is a walk whose steps add to k·2^-24/√2, allowed six times over."""
    rng = np.random.default_rng(0)
    rows, columns, extent = shape
    x = rng.standard_normal((*batch, rows, extent)).astype(np.float32)
    y = rng.standard_normal((*batch, extent, columns)).astype(np.float32)
    device = find_device()
    device.context = device.context._replace(precision=precision)
    out = device.empty(TensorType((*batch, rows, columns), FLOAT32))
    device.product(out, device.upload(x), device.upload(y))
    expected = x.astype(np.float64) @ y.astype(np.float64)
    atol = 16 * rounding * np.sqrt(extent) + 6 * 2.0**-24 * extent
    np.testing.assert_allclose(device.download(out), expected, rtol=0, atol=atol)
