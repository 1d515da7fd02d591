"""nan, infinities, zeros of either sign, subnormal and large numbers on simulated CUDA: they make what they make in the
decomposition on NumPy, as on every other interpreter (tests/numbers/test_special.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu.device import WARP
from opstage.compiler.gpu.probe import find_device
from opstage.interpreters.eager_cuda.kernels import attention, attention_tiles, convolution
from opstage.interpreters.registry import make_interpreter
from opstage.ops.types import INT32, TensorType
from opstage.options import Options
from opstage.transforms.interpreter import BaseInterpreter
from tests.numbers.test_special import SPECIAL, SWEPT, differences
from tests.samples.parts import searched
from tests.samples.sample import Sample

from .test_conformance import BACKENDS, UNSUPPORTED

LARGE = 1e15
"""Neither its square nor the sum of a few overflows, beyond which nothing is promised."""

VALUES_ALONE = {"scaled_dot_product_attention_grad", "biased_attention_grad"}
"""Ops whose derivatives have differences that are 0 or the last place of a number, by the order of a sum: times an
infinity these are nan or infinite. The derivatives are those of other ops."""

OF_SPECTRA = {"eigh", "svd"}
"""Ops whose vectors are any where their values are below the rounding of the greatest, as LARGE would make them."""

BUT_FOR_ROUNDING = {"scaled_dot_product_attention-bias of a number, scale"}
"""Samples with a gradient that is 0 but for rounding (a bias that is the same for all keys changes nothing): with LARGE
elsewhere it is rounding of that size, another by another order of a sum."""

WITHOUT_KERNELS = {"multi_head_attention"}
"""Ops of many products and no kernel of their own here: one place of each operand says what two do, in half the time.
Their parts are gone through at two."""

ALL = [replace(s, order=0) if s.op in VALUES_ALONE else s for s in SWEPT if s.id not in UNSUPPORTED]
ATTENTION = [s for s in ALL if "attention" in s.op]
CONVOLUTIONS = [s for s in ALL if s.op.startswith("conv")]
HEADS_ALONE = [s for s in ATTENTION if "multi" not in s.op]
REST = [s for s in ALL if s not in ATTENTION + CONVOLUTIONS]


def cuda(backend: str = "eager") -> BaseInterpreter[Any]:
    return make_interpreter(Options(device="cuda", backend=backend))


def assert_none(found: list[str]) -> None:
    assert not found, "\n".join(found)


def test_one_nan_and_one_infinity() -> None:
    assert_none([d for s in REST[::12] for d in differences(s, {"cuda": cuda()}, (np.nan, np.inf), 1)])


@pytest.mark.parametrize("by_product", [False, True], ids=["directly", "by products"])
def test_padding_of_convolutions(by_product: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_product:
        monkeypatch.setattr(convolution, "by_product", lambda g: bool(g.windows and g.outputs and g.inputs))
    assert_none(
        [
            d
            for s in CONVOLUTIONS[:: 8 if by_product else 2]
            for d in differences(s, {"cuda": cuda()}, (np.nan, np.inf), 1)
        ]
    )


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
    assert_none(list(differences(sample, {"cuda": cuda()}, (np.inf,), 1)))


@pytest.mark.parametrize("sample", [s for s in HEADS_ALONE if s.case in ("one head", "mask")], ids=lambda s: s.id)
def test_attention_by_tiles(sample: Sample) -> None:
    assert_none(list(differences(sample, {"cuda": cuda()}, (np.nan, np.inf), 1)))


@pytest.mark.parametrize("count", [16, 21])
def test_chunks_of_numbers_have_no_flag(count: int) -> None:
    """Of two matrices of many rows: a nan in the last number of x, an infinity in the first of y."""
    device = find_device()
    chunks = -(-count // attention_tiles.CHUNK)

    def flags(x: Any, y: Any) -> Any:
        out = device.empty(TensorType((2 * chunks,), INT32))
        numbers = map(np.int32, (count, chunks, 3, 2))
        device.each_row(
            attention_tiles.flags_kernel, 2 * chunks, WARP, out, device.upload(x), device.upload(y), *numbers
        )
        return device.download(out).tolist()

    x, y = np.full((2, count, 3), 1e38, np.float32), np.full((2, count, 2), -1e-40, np.float32)
    assert flags(x, y) == [0] * 2 * chunks
    x[-1, -1, -1] = np.nan
    assert flags(x, y) == [0] * (2 * chunks - 1) + [1]
    y[0, 0, 0] = np.inf
    assert flags(x, y) == [1] + [0] * (2 * chunks - 2) + [1]


@pytest.mark.parametrize("sample", HEADS_ALONE[::4], ids=lambda s: s.id)
def test_attention_by_products(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    by_products(monkeypatch)
    assert_none(list(differences(sample, {"cuda": cuda()}, (np.nan, np.inf), 1)))


@pytest.mark.slow
@pytest.mark.parametrize("sample", HEADS, ids=lambda s: s.id)
@pytest.mark.parametrize("tiles", [True, False], ids=["tiles", "products"])
def test_attention_of_many(sample: Sample, tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tiles:
        by_products(monkeypatch)
    assert_none(list(differences(sample, {"cuda": cuda()}, (np.nan, np.inf, -np.inf), 2)))


@pytest.mark.slow
def test_padding_of_every_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "by_product", lambda g: bool(g.windows and g.outputs and g.inputs))
    assert_none([d for s in CONVOLUTIONS for d in differences(s, {"cuda": cuda()}, (np.nan, np.inf), 2)])


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", searched(ALL), ids=lambda s: s.id)
def test_every_value_at_every_operand(sample: Sample, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SIDES", (4,))  # tiles of 16 rows: the samples have 4, and HEADS more
    values = SPECIAL if sample.op in OF_SPECTRA or sample.id in BUT_FOR_ROUNDING else (*SPECIAL, LARGE)
    if sample.op in VALUES_ALONE:  # what it is given as a sum of exponentials is never below 1
        values = tuple(v for v in values if not abs(v) < 1)
    assert_none(list(differences(sample, {"cuda": cuda(backend)}, values, 1 if sample.op in WITHOUT_KERNELS else 2)))
