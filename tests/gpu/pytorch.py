"""PyTorch as what a GPU is held to: where it computes, in which arithmetic, and which cases a device refuses."""

from __future__ import annotations

import pytest

from tests.parity.twin import Case, Twin

from .here import REHEARSAL, missing

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

DEVICE = "cpu" if REHEARSAL else "cuda"
"""PyTorch's."""

if not missing() and not REHEARSAL and not torch.cuda.is_available():
    pytest.skip(f"PyTorch {torch.__version__} sees no GPU: install one made for CUDA", allow_module_level=True)

# float32 on both sides: on a GPU PyTorch's convolutions otherwise round to TF32
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

_FLOAT64 = "float64 is not supported on the device"
WITHOUT_FORM = {
    "cast-integers to float64": _FLOAT64,
    "cast-masks to float64": _FLOAT64,
    "cast-by way of float64": _FLOAT64,
    "cast-by way of float64 transposed": _FLOAT64,
    "cast-by way of float64 repeated": _FLOAT64,
}
"""Cases that a device must refuse, and what it says."""


def name_of(twin: Twin, case: Case) -> str:
    return f"{twin.op}-{case.name}"
