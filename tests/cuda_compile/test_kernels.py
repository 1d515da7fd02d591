"""Every kernel that the samples launch, to a cubin of sm_90: it links, keeps its registers, and stays in float32."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from opstage.compiler.gpu.buffer import Signature, show
from opstage.compiler.gpu.compiler import compile_kernel
from opstage.distributed.fabric import EXCHANGE, EXCHANGE_START, EXCHANGE_WAIT
from opstage.distributed.meetings import MEET, MEET_BEGIN, MEET_END
from opstage.interpreters.eager_cuda.kernels import KERNELS

from .collect import collected

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
    assert alone - reached == {"detach", "reshape"}  # these launch nothing
