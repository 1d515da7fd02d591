"""Intrinsics of kernels beyond Python: memory by address, and calls by address.

These are numba intrinsics; they exist once numba is imported, so this module is imported by what compiles, not before.
"""

# mypy: disable-error-code="attr-defined, no-untyped-call, untyped-decorator"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

_ADDRESS = types.uintp


def _pointer_to(kind: Any, of: Any) -> Any:
    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], of.as_pointer())

        return types.CPointer(kind)(_ADDRESS), generate

    return pointer


_word = _pointer_to(types.uintp, ir.IntType(64))
_signed = _pointer_to(types.intp, ir.IntType(64))


@njit(inline="always")
def words(address, count):  # type: ignore[no-untyped-def]
    """`count` words from an address: the arguments of a kernel."""
    return carray(_word(address), count)


@njit(inline="always")
def int64s(address, count):  # type: ignore[no-untyped-def]
    """`count` signed 64-bit integers from an address."""
    return carray(_signed(address), count)


@intrinsic
def call_kernel(typing, address, lo, hi, worker, arguments):  # type: ignore[no-untyped-def]
    """A kernel, by address."""
    word = ir.IntType(64)
    kernel = ir.FunctionType(ir.VoidType(), [word] * 4)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.call(builder.inttoptr(values[0], kernel.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(_ADDRESS, types.intp, types.intp, types.intp, _ADDRESS), generate


@intrinsic
def call_team(typing, address, function, arguments, counts, strides, data, threads):  # type: ignore[no-untyped-def]
    """`parallel_for` of numba's pools, by address: `function(arguments, counts, strides, data)` on so many threads."""
    word, number = ir.IntType(64), ir.IntType(32)
    team = ir.FunctionType(ir.VoidType(), [*[word] * 7, number])

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        at, *words, threads = values
        inner_dimensions, arrays = ir.Constant(word, 0), ir.Constant(word, 1)
        builder.call(builder.inttoptr(at, team.as_pointer()), [*words, inner_dimensions, arrays, threads])
        return context.get_dummy_value()

    return types.void(*[_ADDRESS] * 6, types.int32), generate


@intrinsic
def call_number(typing, address, number):  # type: ignore[no-untyped-def]
    """`void f(int)`, by address."""
    function = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.call(builder.inttoptr(values[0], function.as_pointer()), [values[1]])
        return context.get_dummy_value()

    return types.void(_ADDRESS, types.int32), generate


@intrinsic
def ask_number(typing, address):  # type: ignore[no-untyped-def]
    """`int f(void)`, by address."""
    function = ir.FunctionType(ir.IntType(32), [])

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.call(builder.inttoptr(values[0], function.as_pointer()), [])

    return types.int32(_ADDRESS), generate


def gemm_by_address(real: Any, wide: bool) -> Any:
    """`gemm(f, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)`: C <- alpha·A·B + beta·C.

    Row-major, cblas_?gemm at address f; matrices by address, sizes and leading dimensions in elements.
    """
    number = ir.FloatType() if real == types.float32 else ir.DoubleType()
    size = ir.IntType(64 if wide else 32)
    flag = ir.IntType(32)
    pointer = number.as_pointer()
    kinds = [flag, flag, flag, size, size, size, number, pointer, size, pointer, size, number, pointer, size]
    gemm = ir.FunctionType(ir.VoidType(), kinds)
    signature = types.void(
        _ADDRESS, types.intp, types.intp, types.intp, types.intp, types.intp, real,
        _ADDRESS, types.intp, _ADDRESS, types.intp, real, _ADDRESS, types.intp,
    )  # fmt: skip

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def integer(value: Any) -> Any:
            return value if wide else builder.trunc(value, size)

        f, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = values
        plain, transposed = ir.Constant(flag, 111), ir.Constant(flag, 112)
        chosen = [
            builder.select(builder.icmp_signed("!=", t, ir.Constant(t.type, 0)), transposed, plain)
            for t in (transpose_a, transpose_b)
        ]
        at = [builder.inttoptr(address, pointer) for address in (a, b, c)]
        sizes = [integer(value) for value in (m, n, k, lda, ldb, ldc)]
        row_major = ir.Constant(flag, 101)
        builder.call(
            builder.inttoptr(f, gemm.as_pointer()),
            [row_major, *chosen, *sizes[:3], alpha, at[0], sizes[3], at[1], sizes[4], beta, at[2], sizes[5]],
        )
        return context.get_dummy_value()

    @intrinsic
    def call(typing, f, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):  # type: ignore[no-untyped-def]
        return signature, generate

    return call
