"""nan, infinities, zeros of either sign, subnormal and large numbers on simulated CUDA: they make what they make in the
decomposition on NumPy, as on every other interpreter (tests/numbers/test_special.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opstage.interpreters.eager_cuda.kernels import attention, convolution
from opstage.interpreters.interpreter import BaseInterpreter
from opstage.interpreters.registry import make_interpreter
from opstage.options import Options
from tests.numbers.test_special import SPECIAL, SWEPT, differences
from tests.samples.sample import Sample

from .test_conformance import BACKENDS, UNSUPPORTED

LARGE = 1e15
"""Neither its square nor the sum of a few overflows, beyond which nothing is promised."""

VALUES_ALONE = {"scaled_dot_product_attention_grad"}
"""Ops whose derivatives have differences that are 0 or the last place of a number, by the order of a sum: times an
infinity these are nan or infinite. The derivatives are those of other ops."""

ALL = [replace(s, order=0) if s.op in VALUES_ALONE else s for s in SWEPT if s.id not in UNSUPPORTED]
ATTENTION = [s for s in ALL if "attention" in s.op]
CONVOLUTIONS = [s for s in ALL if s.op.startswith("conv")]
REST = [s for s in ALL if s not in ATTENTION + CONVOLUTIONS]


def cuda(backend: str = "eager") -> BaseInterpreter[Any]:
    return make_interpreter(Options(device="cuda", backend=backend))


def assert_none(found: list[str]) -> None:
    assert not found, "\n".join(found)


def test_one_nan_and_one_infinity() -> None:
    assert_none([d for s in REST[::12] for d in differences(s, cuda(), (np.nan, np.inf), 1)])


@pytest.mark.parametrize("by_product", [False, True], ids=["directly", "by products"])
def test_padding_of_convolutions(by_product: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_product:
        monkeypatch.setattr(
            convolution, "by_product", lambda geometry: bool(geometry.windows and geometry.outputs and geometry.inputs)
        )
    assert_none([d for s in CONVOLUTIONS[::4] for d in differences(s, cuda(), (np.nan, np.inf), 1)])


def heads(queries: int, keys: int, masked: bool, causal: bool) -> Sample:
    """Attention of so many that they have several tiles; where there is a mask, one query may attend to nothing."""

    def arrays(rng: np.random.Generator) -> tuple[Any, ...]:
        q, k, v = (rng.standard_normal((2, *shape)) for shape in ((queries, 3), (keys, 3), (keys, 2)))
        mask = rng.random((queries, keys)) < 0.5
        mask[1] = False
        return (q, k, v, mask) if masked else (q, k, v)

    what = f"{queries} and {keys}{', mask' * masked}{', causal' * causal}"
    return Sample("scaled_dot_product_attention", what, arrays, None, {"causal": causal})


HEADS = [
    heads(queries, keys, masked, causal)
    for queries, keys in ((19, 35), (35, 19))
    for masked, causal in ((False, False), (False, True), (True, False), (True, True))
]


def by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    for widest in ("WIDEST", "WIDEST_GRAD"):
        monkeypatch.setattr(attention, widest, 0)


@pytest.mark.parametrize("sample", HEADS[1:4:2], ids=lambda s: s.id)
def test_tiles_that_nobody_sees_are_left_out_of_numbers_alone(sample: Sample) -> None:
    assert_none(list(differences(sample, cuda(), (np.inf,), 1)))


@pytest.mark.parametrize("sample", [s for s in ATTENTION if "multi" not in s.op][::4], ids=lambda s: s.id)
def test_attention_by_products(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    by_products(monkeypatch)
    assert_none(list(differences(sample, cuda(), (np.nan, np.inf), 1)))


@pytest.mark.slow
@pytest.mark.parametrize("sample", HEADS, ids=lambda s: s.id)
@pytest.mark.parametrize("tiles", [True, False], ids=["tiles", "products"])
def test_attention_of_many(sample: Sample, tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tiles:
        by_products(monkeypatch)
    assert_none(list(differences(sample, cuda(), (np.nan, np.inf, -np.inf), 6)))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", ALL, ids=lambda s: s.id)
def test_every_value_at_every_operand(sample: Sample, backend: str) -> None:
    assert_none(list(differences(sample, cuda(backend), (*SPECIAL, LARGE), 2)))
