"""Kernels of updates: the loop that computes one tensor alone computes many, so neither rounds otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from opstage.interpreters.eager_cuda.kernels import update
from opstage.interpreters.gpu.device.compile import to_ptx
from opstage.interpreters.gpu.device.signature import Signature, show

from .collect import collected

SM_90 = (9, 0)
RESULTS = {
    update.sgd_kernel: 1,
    update.momentum_kernel: 2,
    update.nesterov_kernel: 2,
    update.adagrad_kernel: 2,
    update.rmsprop_kernel: 2,
    update.adadelta_kernel: 3,
    update.adam_kernel: 3,
}
UPDATES = sorted((launch for launch in collected() if launch[0] in RESULTS), key=lambda launch: show(*launch))


def test_each_update_is_one_kernel_for_any_number_of_tensors() -> None:
    assert [kernel for kernel, _ in UPDATES] == sorted(RESULTS, key=lambda kernel: kernel.__name__)
    assert all("float32**" in signature for _, signature in UPDATES)


@pytest.mark.parametrize(("kernel", "signature"), UPDATES, ids=[show(*launch) for launch in UPDATES])
def test_there_is_one_loop_with_weight_decay_and_one_without(kernel: Callable[..., None], signature: Signature) -> None:
    stores = re.findall(r"\bst(?:\.global)?\.f32\b", to_ptx(kernel, signature, SM_90))
    assert len(stores) == 2 * RESULTS[kernel]
