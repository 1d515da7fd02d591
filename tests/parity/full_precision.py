"""torch.optim.Muon without its rounding to bfloat16.

PyTorch casts the matrix to bfloat16 before the Newton-Schulz iterations; Opstage iterates in the parameter's dtype. To
compare everything else to the last digits, that one cast is replaced by a copy while an optimizer steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch


@contextmanager
def in_its_own_dtype() -> Iterator[None]:
    """`tensor.bfloat16()` is a copy of the tensor inside."""
    with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        yield
