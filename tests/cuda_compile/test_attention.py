"""The kernels of attention by tiles in every width that is launched, of which the samples have the narrowest alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opstage.compiler.gpu.compiler import compile_kernel
from opstage.compiler.gpu.device import GRID
from opstage.interpreters.eager_cuda.kernels.attention import SIDES, WIDEST, WIDEST_GRAD
from opstage.interpreters.eager_cuda.kernels.attention_tiles import (
    flags_kernel,
    forward_kernel,
    keys_kernel,
    queries_kernel,
)

from .test_kernels import MOST_REGISTERS, SM_90

STATIC_SHARED = 48 << 10
SEEN = ("uint8*", "int32*", *("int32",) * 7, "float32")
FLAGS = {forward_kernel: 1, queries_kernel: 1, keys_kernel: 2}
LAUNCHED = [
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
@pytest.mark.parametrize(("make", "pointers", "width"), LAUNCHED)
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
