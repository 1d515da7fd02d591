"""The comparisons with PyTorch of tests/parity, both on the GPU, in float32: every op, views, second derivatives."""

from __future__ import annotations

import numpy as np
import pytest

from opstage.interpreters.registry import make_interpreter
from opstage.ops.errors import UnsupportedError
from opstage.options import Options

from .pytorch import DEVICE, WITHOUT_FORM, name_of

from tests.conformance.harness import EXECUTING  # isort: skip  # PyTorch is known to be there from here on
from tests.parity.compare import assert_equal_outcomes, on_opstage, on_torch, operands  # isort: skip
from tests.parity.test_ops import CASES, SMOOTH_CASES as SMOOTH, VIEWS, hessian_vector_products  # isort: skip
from tests.parity.twin import Case, Twin  # isort: skip

CUDA = Options(device="cuda")
EVERY = [*CASES, *VIEWS]
COMPARED = [pair for pair in EVERY if name_of(*pair) not in WITHOUT_FORM]


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in ("eager", "compiled"):
        fixed = {"device": "cuda", "backend": backend}
        monkeypatch.setitem(
            EXECUTING, f"cuda, {backend}", lambda options, fixed=fixed: make_interpreter(options.replace(**fixed))
        )


def compare(backend: str, twin: Twin, case: Case) -> None:
    args = operands(twin, case, "float32")
    expected, seeds = on_torch(twin, case, args, "float32", device=DEVICE)
    actual = on_opstage(f"cuda, {backend}", twin, case, args, seeds, "float32")
    assert_equal_outcomes(actual, expected, case, "float32")


@pytest.mark.parametrize("twin, case", COMPARED, ids=[name_of(*pair) for pair in COMPARED])
def test_agrees_with_pytorch(twin: Twin, case: Case) -> None:
    compare("eager", twin, case)


@pytest.mark.parametrize("twin, case", COMPARED[::10], ids=[name_of(*pair) for pair in COMPARED[::10]])
def test_compiled_agrees_with_pytorch(twin: Twin, case: Case) -> None:
    """Every tenth: each is a program of its own, whose kernels are compiled."""
    compare("compiled", twin, case)


@pytest.mark.parametrize("twin, case", SMOOTH, ids=[name_of(*pair) for pair in SMOOTH])
def test_hessian_vector_product(twin: Twin, case: Case) -> None:
    """Beside PyTorch's in float64, by the largest of each: second derivatives cancel."""
    for ours, theirs in zip(*hessian_vector_products(twin, case, CUDA, DEVICE), strict=True):
        scale = 1 + float(np.max(np.abs(theirs), initial=0))
        np.testing.assert_allclose(ours / scale, theirs / scale, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", WITHOUT_FORM)
def test_what_a_device_has_not_is_refused(name: str) -> None:
    twin, case = next(pair for pair in EVERY if name_of(*pair) == name)
    args = operands(twin, case, "float32")
    _, seeds = on_torch(twin, case, args, "float32", device=DEVICE)
    with pytest.raises(UnsupportedError, match=WITHOUT_FORM[name]):
        on_opstage("cuda, eager", twin, case, args, seeds, "float32")
