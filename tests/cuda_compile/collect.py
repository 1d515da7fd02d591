"""Every kernel and signature that the conformance suite's samples and steps of training launch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

import opstage
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.buffer import Signature
from opstage.init import normal, uniform, zeros
from opstage.interpreters.eager_cuda.kernels import columns, convolution
from opstage.interpreters.registry import make_interpreter
from opstage.ops.errors import LocatedError, UsageError
from opstage.ops.types import FLOAT32
from opstage.options import Options
from tests.conformance.harness import inputs, leaves, program_of, random_like
from tests.conformance.test_derivatives import scalarised
from tests.samples import SAMPLES
from tests.samples.sample import Sample

from .recorder import Recorder

CUDA = Options(device="cuda", detect_anomaly=False)

OPTIMIZERS = {
    name: make(lr=0.1) for name, make in opstage.optim.SHIPPED.items() if name != "muon"
}  # Muon's updates are products
"""The optimizers whose updates are elementwise."""


@cache
def collected() -> dict[tuple[Callable[..., None], Signature], set[str]]:
    """The ops that launched each kernel, in each of its types."""
    recorder = Recorder()
    with mock.patch.object(probe, "_found", lambda number=0: recorder):
        for sample in SAMPLES:
            _sample(sample)
        always = mock.patch.object(convolution, "by_product", lambda geometry: True)
        with always, mock.patch.object(columns, "WIDE", 1):  # the samples are small
            for sample in SAMPLES:
                if sample.op.startswith("conv"):
                    _sample(sample)
        for optimizer in OPTIMIZERS.values():
            _training(optimizer)
        _first_values()
    return recorder.launches


def _first_values() -> None:
    interpreter = make_interpreter(CUDA)
    for scheme in (zeros, uniform(-1.0, 1.0, seed=0), normal(seed=0)):
        interpreter.fill(scheme, (3,), FLOAT32)


def _sample(sample: Sample) -> None:
    args = inputs(sample, "float32")
    with suppress(LocatedError, UsageError):  # what a device has not, tests/cuda sees refused
        opstage.run(program_of(sample), *args, options=CUDA)
        if sample.order == 0:
            return
        rng = np.random.default_rng(0)
        outputs = [out for out in leaves(opstage.run(program_of(sample), *args)) if out.dtype.kind == "f"]
        program = scalarised(sample, [rng.standard_normal(out.shape).astype(np.float32) for out in outputs])
        opstage.value_and_grad(program, *args, wrt=tuple(range(len(args))), options=CUDA)
        v = random_like(rng, args)
        opstage.jvp(program_of(sample), args, v, options=CUDA)
        if sample.order > 1:
            opstage.hvp(program, args, v, options=CUDA)


def _training(optimizer: Any) -> None:
    x, y = np.ones((3, 4), np.float32), np.array([0, 1, 1])

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.relu(ops.linear(params["w"], params["b"], x)), y)

    params = {"w": np.ones((2, 4), np.float32), "b": np.zeros(2, np.float32)}
    trainer = opstage.scalar_trainer(loss, params, options=CUDA)
    state = trainer.init_optim(optimizer)
    for _ in range(2):
        state = trainer.step_with(optimizer, state, x, y)
