"""Every kernel to a cubin of sm_90: those of samples, attention in every width, updates, generated ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest

import opstage
from opstage import debug
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.buffer import Signature, show
from opstage.compiler.gpu.compiler import compile_kernel, to_ptx
from opstage.compiler.gpu.device import GRID
from opstage.distributed.compiled_collectives import MEET, MEET_BEGIN, MEET_END
from opstage.distributed.transport import EXCHANGE, EXCHANGE_START, EXCHANGE_WAIT
from opstage.interpreters.eager_cuda.kernels import KERNELS
from opstage.interpreters.eager_cuda.kernels.attention import SIDES, WIDEST, WIDEST_GRAD
from opstage.interpreters.eager_cuda.kernels.attention_tiles import (
    flags_kernel,
    forward_kernel,
    keys_kernel,
    queries_kernel,
)
from opstage.interpreters.registry import make_interpreter
from opstage.ops.types import FLOAT32
from opstage.options import Options
from tests.cuda.small_models import CONFIGS, batch, trainer
from tests.cuda_compile.collect import OPTIMIZERS, collected
from tests.cuda_compile.recorder import Recorder

SM_90 = (9, 0)
MOST_REGISTERS = 128
"""Two blocks of 256 threads then run on a multiprocessor at once, which has 65,536 registers."""

REDUCED_BY_A_TABLE = {"sin": 32, "cos": 32, "cos_pullback": 32, "sin_cos_div": 32, "normal_fill_kernel": 40}
"""Bytes of stack: libdevice brings arguments beyond 105,615 into a period with many digits of 2/π, in float64."""

IN_FLOAT64 = {*REDUCED_BY_A_TABLE, "uniform_fill_kernel"}
"""First values of parameters are computed in float64 and rounded once, as on the host."""

DIVIDES = re.compile(r"(^|_)(floor_divide|mod)(_|$)")
"""Kernels of ops that divide the elements themselves, of which those of int64 are divided as such."""

LAUNCHED = sorted(collected(), key=lambda launch: show(*launch))


@pytest.mark.parametrize(("kernel", "signature"), LAUNCHED, ids=[show(*launch) for launch in LAUNCHED])
def test_compiles(kernel: Callable[..., None], signature: Signature) -> None:
    compiled = compile_kernel(kernel, signature, SM_90)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.name.encode() in compiled.cubin
    resources = compiled.resources
    assert 0 < resources.registers <= MOST_REGISTERS, resources
    assert (resources.spilled, resources.stack) == (0, REDUCED_BY_A_TABLE.get(kernel.__name__, 0)), resources
    if kernel.__name__ not in IN_FLOAT64:
        assert resources.doubles == 0, "float64 on the way: a Python number met a float32"
    if not show(kernel, signature).count("int64*") or not DIVIDES.search(kernel.__name__):
        assert resources.divisions == 0, "divided in 64 bits: see gpu/language.py"


def test_the_samples_reach_every_op_with_a_kernel_of_its_own() -> None:
    reached = set().union(*collected().values())
    between_ranks = {EXCHANGE, EXCHANGE_START, EXCHANGE_WAIT, MEET, MEET_BEGIN, MEET_END}  # these do calls of other ops
    alone = {primitive.name for primitive in KERNELS if primitive not in between_ranks}
    assert alone - reached == {"detach", "reshape", debug._PRINT.name}  # these launch nothing


STATIC_SHARED = 48 << 10
SEEN = ("uint8*", "int32*", *("int32",) * 7, "float32")
FLAGS = {forward_kernel: 1, queries_kernel: 1, keys_kernel: 2}
WIDTHS = [
    (make, pointers, width)
    for make, pointers, widest in (
        (forward_kernel, 6, WIDEST),
        (queries_kernel, 8, WIDEST_GRAD),
        (keys_kernel, 9, WIDEST_GRAD),
    )
    for width in (16, 32, 64, 128)
    if width <= widest
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("make", "pointers", "width"), WIDTHS)
def test_tiles_stay_in_registers_and_shared_memory(
    make: Callable[..., Any], pointers: int, width: int, masked: bool
) -> None:
    assert SIDES[0] ** 2 == GRID.block
    signature = "int32", *("float32*",) * pointers, *("int32*",) * FLAGS[make], *SEEN
    found = compile_kernel(make(width, SIDES[0], masked), signature, SM_90).resources
    assert 0 < found.registers <= MOST_REGISTERS, found
    assert (found.spilled, found.stack, found.doubles, found.divisions) == (0, 0, 0, 0), found
    assert found.shared <= STATIC_SHARED, found


def test_flags_are_found_in_float32() -> None:
    """The samples have too few rows for them."""
    signature = "int32", "int32", "int32*", "float32*", "float32*", *("int32",) * 4
    found = compile_kernel(flags_kernel, signature, SM_90).resources
    assert 0 < found.registers <= MOST_REGISTERS, found
    assert (found.spilled, found.stack, found.doubles, found.divisions) == (0, 0, 0, 0), found


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
def test_generated_compiles(number: int) -> None:
    resources = compile_kernel(*generated()[number], SM_90).resources
    assert 0 < resources.registers <= MOST_REGISTERS, resources
    slow = any(word in generated()[number][0].__name__ for word in ("sin", "cos"))
    assert resources.spilled == 0 and (slow or resources.stack == 0), resources
    assert slow or resources.doubles == 0, "float64 on the way: a Python number met a float32"
    assert resources.divisions == 0, "divided in 64 bits: see gpu/language.py"


def test_models_and_sums_take_a_few_dozen_kernels() -> None:
    """A text does not depend on sizes, so models share kernels."""
    assert 20 < len(generated()) < 200
