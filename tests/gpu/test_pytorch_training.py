"""The optimizers, clipping and shipped models of tests/parity, Opstage's and PyTorch's both on the GPU, in float32."""

from __future__ import annotations

import pytest

from opstage.options import Options

from .pytorch import DEVICE

from tests.parity.models import MODELS  # isort: skip  # PyTorch is known to be there from here on
from tests.parity.test_models import compare_loss_curve  # isort: skip
from tests.parity.test_optimizers import CLIPS, OPTIMIZERS, compare_clipping, compare_optimizer  # isort: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str) -> None:
    compare_optimizer(name, "float32", "cuda", DEVICE)


@pytest.mark.parametrize("name", CLIPS)
def test_clipping(name: str) -> None:
    compare_clipping(name, "float32", "cuda", DEVICE)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_curve(name: str, backend: str) -> None:
    compare_loss_curve(name, Options(device="cuda", backend=backend), DEVICE)
