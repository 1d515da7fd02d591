"""Intrinsics for memory and calls by address.

Only code that compiles kernels imports this module, since it imports LLVM's types.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def"
from __future__ import annotations

from typing import Any

from llvmlite import ir

from .frontend import allocated, intrinsic
from .frontend.kinds import INT32, INT64, UINT64, VOID, WORDS, ScalarKind

_WORD, _NUMBER = ir.IntType(64), ir.IntType(32)
_AT_ONCE = 0x40 | 0x4000  # MSG_DONTWAIT, MSG_NOSIGNAL of Linux


@intrinsic(WORDS, UINT64, INT64)
def int64s(builder, address, count):
    """Return `count` signed 64-bit integers at an address: a kernel's arguments, a table."""
    return builder.inttoptr(address, WORDS.type)


@intrinsic(VOID, UINT64, INT64, INT64, INT64, UINT64)
def call_kernel(builder, address, lo, hi, worker, arguments):
    """Call a kernel by address."""
    _call(builder, ir.FunctionType(ir.VoidType(), [_WORD] * 4), address, [lo, hi, worker, arguments])


@intrinsic(VOID, *[UINT64] * 6, INT32)
def call_team(builder, address, function, arguments, counts, strides, data, threads):
    """Call `parallel_for` of numba's pools by address: `function(arguments, counts, strides, data)` on `threads`
    threads."""
    inner_dimensions, arrays = _WORD(0), _WORD(1)
    given = [function, arguments, counts, strides, data, inner_dimensions, arrays, threads]
    _call(builder, ir.FunctionType(ir.VoidType(), [*[_WORD] * 7, _NUMBER]), address, given)


@intrinsic(VOID, UINT64, INT32)
def call_number(builder, address, number):
    """Call `void f(int)` by address."""
    _call(builder, ir.FunctionType(ir.VoidType(), [_NUMBER]), address, [number])


@intrinsic(INT32, UINT64)
def ask_number(builder, address):
    """Call `int f(void)` by address."""
    return _call(builder, ir.FunctionType(_NUMBER, []), address, [])


@intrinsic(VOID, UINT64, INT64)
def send_byte(builder, address, socket):
    """Send a byte to a socket by the C library's `send` at an address: at once, or not at all."""
    byte = ir.IntType(8)
    place = allocated(builder, byte)
    builder.store(byte(0), place)
    function = ir.FunctionType(_WORD, [_NUMBER, byte.as_pointer(), _WORD, _NUMBER])
    _call(builder, function, address, [builder.trunc(socket, _NUMBER), place, _WORD(1), _NUMBER(_AT_ONCE)])


@intrinsic(VOID, UINT64, INT64, INT64, INT64)
def copy_bytes(builder, address, to, source, count):
    """Copy bytes by the C library's `memcpy` at an address."""
    byte = ir.IntType(8).as_pointer()
    places = [builder.inttoptr(place, byte) for place in (to, source)]
    _call(builder, ir.FunctionType(byte, [byte, byte, _WORD]), address, [*places, count])


def _call(builder: Any, function: Any, address: Any, arguments: list[Any]) -> Any:
    return builder.call(builder.inttoptr(address, function.as_pointer()), arguments)


def gemm_by_address(real: ScalarKind, wide: bool) -> Any:
    """Return `gemm(f, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)`: C <- alpha·A·B +
    beta·C.

    Row-major, cblas_?gemm at address f; matrices by address, sizes and leading dimensions in elements.
    """
    size = ir.IntType(64 if wide else 32)
    flag, pointer = _NUMBER, real.type.as_pointer()
    kinds = [flag, flag, flag, size, size, size, real.type, pointer, size, pointer, size, real.type, pointer, size]
    function = ir.FunctionType(ir.VoidType(), kinds)

    @intrinsic(VOID, UINT64, *[INT64] * 5, real, UINT64, INT64, UINT64, INT64, real, UINT64, INT64)
    def call(builder, f, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        def integer(value: Any) -> Any:
            return value if wide else builder.trunc(value, size)

        plain, transposed = flag(111), flag(112)
        chosen = [
            builder.select(builder.icmp_signed("!=", t, t.type(0)), transposed, plain)
            for t in (transpose_a, transpose_b)
        ]
        at = [builder.inttoptr(address, pointer) for address in (a, b, c)]
        sizes = [integer(value) for value in (m, n, k, lda, ldb, ldc)]
        row_major = flag(101)
        given = [row_major, *chosen, *sizes[:3], alpha, at[0], sizes[3], at[1], sizes[4], beta, at[2], sizes[5]]
        _call(builder, function, f, given)

    return call
