"""Kernels of updates: the loop that computes one tensor alone computes many, so neither rounds otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from opstage.compiler.gpu.buffer import Signature, show
from opstage.compiler.gpu.compiler import to_ptx
from opstage.ops.types import FLOAT32

from .collect import OPTIMIZERS, collected

SM_90 = (9, 0)
RESULTS = {f"{name}_update": 1 + len(each.slots((3,), FLOAT32, "p")) for name, each in OPTIMIZERS.items()}
"""By the name of its kernel, how many arrays an update gives: the parameter and its state."""
UPDATES = sorted((launch for launch in collected() if launch[0].__name__ in RESULTS), key=lambda launch: show(*launch))


def test_each_update_is_one_kernel_for_any_number_of_tensors() -> None:
    """And for all rates: those of one name differ in what they do, as with weight decay and without."""
    assert {kernel.__name__ for kernel, _ in UPDATES} == set(RESULTS)
    assert all("float32**" in signature for _, signature in UPDATES)
    assert len({kernel for kernel, _ in UPDATES}) == len(UPDATES) <= 3 * len(RESULTS)


@pytest.mark.parametrize(("kernel", "signature"), UPDATES, ids=[show(*launch) for launch in UPDATES])
def test_there_is_one_loop(kernel: Callable[..., None], signature: Signature) -> None:
    stores = re.findall(r"\bst(?:\.global)?\.f32\b", to_ptx(kernel, signature, SM_90))
    assert len(stores) == RESULTS[kernel.__name__]
