"""The samples by kernels with the types of compiled code: what these compute is what the simulator's Python does."""

from __future__ import annotations

import numpy as np
import pytest

import opstage.api
from opstage.compiler.gpu import probe
from opstage.interpreters.eager_cuda.kernels import columns, convolution
from opstage.interpreters.registry import make_interpreter
from tests.cuda import test_conformance as conformance
from tests.samples.sample import Sample

from .typed import Typed, for_one_thread


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    device = Typed()
    monkeypatch.setattr(probe, "_found", lambda number: device)
    monkeypatch.setattr(opstage.api, "shared_interpreter", make_interpreter)
    return device


@pytest.mark.parametrize("sample", conformance.samples(0), ids=lambda s: s.id)
def test_values(sample: Sample) -> None:
    conformance.test_values(sample, "eager")


@pytest.mark.parametrize("sample", conformance.samples(0)[::4], ids=lambda s: s.id)
def test_values_by_generated_kernels(sample: Sample) -> None:
    conformance.test_values(sample, "compiled")


@pytest.mark.parametrize("sample", conformance.samples(1)[::3], ids=lambda s: s.id)
def test_first_derivatives(sample: Sample) -> None:
    conformance.test_first_derivatives(sample, "eager")


@pytest.mark.parametrize("sample", [s for s in conformance.samples(0) if s.op.startswith("conv")], ids=lambda s: s.id)
def test_convolutions_by_products(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """In short runs; the samples are too small for the rule to choose products."""
    monkeypatch.setattr(convolution, "by_product", lambda geometry: geometry.windows > 0)
    monkeypatch.setattr(columns, "WORKSPACE", 100)
    monkeypatch.setattr(columns, "WIDE", 1)
    conformance.test_values(sample, "eager")


def test_types_are_those_of_compiled_code() -> None:
    def kernel(out: object, x: object) -> None:
        out[0] = (x[0] + x[0]) // 2  # type: ignore[index]

    x, out = np.array([200], np.uint8), np.zeros(1, np.uint8)
    with np.errstate(over="ignore"):
        kernel(out, x)
    assert out[0] == 72  # NumPy adds bytes as bytes
    for_one_thread(kernel)(out, x)
    assert out[0] == 200  # compiled code in 64 bits
