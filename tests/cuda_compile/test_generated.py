"""The kernels that are generated for training steps of the shipped models, and for sums of every form, to sm_90."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest

import opstage
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.buffer import Signature, show
from opstage.compiler.gpu.compiler import compile_kernel
from opstage.interpreters.registry import make_interpreter
from opstage.options import Options
from tests.cuda.small_models import CONFIGS, batch, trainer

from .recorder import Recorder
from .test_kernels import MOST_REGISTERS, SM_90

COMPILED = Options(backend="compiled", device="cuda", detect_anomaly=False)
X = np.ones((40, 3, 50), np.float32)

SUMS: dict[str, Callable[..., Any]] = {
    "a row": lambda ops, x: ops.reduce_sum(ops.exp(x), axis=2),
    "a row, used by its elements": lambda ops, x: ops.div(
        x, ops.broadcast_to(ops.reduce_sum(x, axis=2, keepdims=True), shape=x.shape)
    ),
    "the greatest of a row": lambda ops, x: ops.reduce_max(ops.neg(x), axis=(1, 2)),
    "columns": lambda ops, x: ops.reduce_sum(ops.mul(x, x), axis=0),
    "the middle axis": lambda ops, x: ops.reduce_sum(ops.sin(x), axis=1),
    "everything": lambda ops, x: ops.sum(ops.cos(x)),
    "a permuted tensor": lambda ops, x: ops.add(ops.permute(x, axes=(2, 0, 1)), ops.permute(x, axes=(2, 0, 1))),
    "masks": lambda ops, x: ops.logical_not(ops.less(x, ops.abs(x))),
    "powers": lambda ops, x: ops.pow(ops.abs(x), exponent=1.7),
}


@cache
def generated() -> list[tuple[Callable[..., None], Signature]]:
    recorder = Recorder()
    with (
        mock.patch.object(probe, "_found", lambda number=0: recorder),
        mock.patch("opstage.interpreters.eager_cuda.interpreter.find_device", lambda number=0: recorder),
        mock.patch("opstage.api.shared_interpreter", make_interpreter),  # none on the recorder stays for other tests
    ):
        for program in SUMS.values():
            opstage.run(program, X, options=COMPILED)
        for name in sorted(CONFIGS):
            trainer(name, COMPILED).adamw_step(0.1, 0.9, 0.999, 1e-8, 0.1, *batch(name))
    written = [launch for launch in recorder.launches if launch[0].__code__.co_filename.startswith("<kernel")]
    return sorted(written, key=lambda launch: show(*launch))


@pytest.mark.parametrize("number", range(len(generated())), ids=lambda i: show(*generated()[i]))
def test_compiles(number: int) -> None:
    resources = compile_kernel(*generated()[number], SM_90).resources
    assert 0 < resources.registers <= MOST_REGISTERS, resources
    slow = any(word in generated()[number][0].__name__ for word in ("sin", "cos"))
    assert resources.spilled == 0 and (slow or resources.stack == 0), resources
    assert slow or resources.doubles == 0, "float64 on the way: a Python number met a float32"
    assert resources.divisions == 0, "divided in 64 bits: see gpu/language.py"


def test_models_and_sums_take_a_few_dozen_kernels() -> None:
    """A text does not depend on sizes, so models share kernels."""
    assert 20 < len(generated()) < 200
