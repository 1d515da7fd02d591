"""The language of kernels: what a compiled function does is what Python does with the same lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opstage
from opstage.compiler.native import Kernel, access
from opstage.compiler.native import intrinsics as memory
from opstage.compiler.native.compiler import _load, object_code
from opstage.compiler.native.frontend import CannotCompile, lowered, source_of, source_of_text
from opstage.compiler.native.thread_pool import KernelCall, KernelSequence

# mypy: disable-error-code="no-untyped-call, no-untyped-def"

_names = itertools.count()
SIZE = 32


def compiled(kernel: Any) -> Callable[[Any], None]:
    """`run(words)` does a kernel with one task, whose arguments are the words."""
    entry = f"frontend_{next(_names)}"
    made = Kernel(entry, _load(object_code(kernel, entry), entry))

    def run(words: Any) -> None:
        KernelSequence([KernelCall(made, 1, words.view(np.uint64), False)]).run()

    return run


@cache
def on_this_machine(factory: Callable[..., Any]) -> Callable[[Any], None]:
    """The kernel of a factory, compiled once for all numbers that it is given."""
    return compiled(factory(memory.int64s, access.load("float64"), access.store("float64", access.written(0))))


def agree(factory: Callable[..., Any], *inputs: Any) -> Any:
    """What both leave in memory: `factory(int64s, load, store, real)` makes a kernel for each of them."""
    words = np.zeros(SIZE, np.int64)
    for i, number in enumerate(inputs):
        (words.view(np.float64) if isinstance(number, float) else words)[i] = number
    expected = words.copy()

    def load_in_python(at: Any, i: int) -> Any:
        return expected.view(np.float64)[i]

    def store_in_python(at: Any, i: int, x: Any) -> None:
        expected.view(np.float64)[i] = x

    def cells(at: Any, n: int) -> Any:
        class Cells:
            def __getitem__(self, i: int) -> int:
                return int(expected[i])

            def __setitem__(self, i: int, x: Any) -> None:
                wrapped = int(x) % 2**64
                expected[i] = wrapped - 2**64 if wrapped >= 2**63 else wrapped

        return Cells()

    with np.errstate(all="ignore"):
        factory(cells, load_in_python, store_in_python)(0, 1, 0, 0)
    on_this_machine(factory)(words)
    np.testing.assert_array_equal(words, expected)
    return words


# Integers ------------------------------------------------------------------------------------------------------------


def arithmetic(int64s, load, store):
    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, 32)
        a, b = w[0], w[1]
        w[2], w[3], w[4] = a + b, a - b, a * b
        w[5], w[6], w[7] = a & b, a | b, a ^ b
        w[8], w[9] = a << (b & 31), a >> (b & 31)
        if b != 0:
            w[10], w[11] = a // b, a % b
        w[12], w[13] = -a, ~a
        w[14], w[15], w[16] = a < b, a <= b, a == b
        w[17], w[18], w[19] = a > b, a >= b, a != b
        w[20], w[21] = min(a, b, 5), max(a, b, -5)
        w[22] = 7 if a < b < 100 else 8
        w[23] = a // 7 + a % 7 * 100
        w[24] = a // -3 + a % -3 * 100
        w[25] = 1 if (a > 0 and b > 0) or not a < b else 2
        a += b
        a -= 3
        a *= 2
        w[26] = a

    return kernel


@pytest.mark.parametrize("a", [0, 1, -1, 7, -7, 100, -100])
@pytest.mark.parametrize("b", [0, 1, -1, 3, -3, 64])
def test_integers(a: int, b: int) -> None:
    agree(arithmetic, a, b)


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_integers_wrap_around(a: int, b: int) -> None:
    agree(arithmetic, a, b)


def test_a_division_by_nothing_ends_no_process() -> None:
    def kernel(lo, hi, worker, arguments):
        w = memory.int64s(arguments, 4)
        w[2], w[3] = w[0] // w[1], w[0] % w[1]

    words = np.array([5, 0, 9, 9])
    compiled(kernel)(words)
    assert words.tolist() == [5, 0, 0, 0]


def test_words_unpack_into_names() -> None:
    def kernel(lo, hi, worker, arguments):
        a, b = memory.int64s(arguments, 3)
        memory.int64s(arguments, 3)[2] = 10 * a + b

    words = np.array([4, 2, 0])
    compiled(kernel)(words)
    assert words.tolist() == [4, 2, 42]


def test_integers_of_32_bits_and_unsigned_ones() -> None:
    def kernel(lo, hi, worker, arguments):
        w = memory.int64s(arguments, 8)
        small = np.int32(w[0])
        w[1] = np.int32(small + small)  # wraps around
        w[2] = small + small  # does not
        w[3] = np.uint64(w[0]) >> np.uint64(60)
        w[4] = np.uint8(w[0])
        w[5] = np.int32(w[0]).view(np.float32) == np.float32(-0.0)
        w[6] = np.uint64(w[0]) < np.uint64(1)

    words = np.array([-(2**31), *[0] * 7])
    compiled(kernel)(words)
    assert words.tolist() == [-(2**31), 0, -(2**32), 15, 0, 1, 0, 0]


# Floats --------------------------------------------------------------------------------------------------------------

FLOATS = [0.0, -0.0, 1.5, -2.25, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan]


def floats(int64s, load, store):
    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, 32)
        x, y = load(arguments, 0), load(arguments, 1)
        store(arguments, 2, x + y)
        store(arguments, 3, x - y)
        store(arguments, 4, x * y)
        store(arguments, 5, x / y)
        store(arguments, 6, -x)
        store(arguments, 7, abs(x))
        store(arguments, 8, x if x > y else y)
        w[9], w[10], w[11] = x < y, x <= y, x == y
        w[12], w[13], w[14] = x > y, x >= y, x != y
        w[15] = not x < y
        w[16] = 3 if x else 4
        store(arguments, 17, w[15] * 0.5)
        store(arguments, 18, np.float64(np.float32(x)))

    return kernel


@pytest.mark.parametrize("x", FLOATS)
@pytest.mark.parametrize("y", FLOATS)
def test_floats(x: float, y: float) -> None:
    agree(floats, x, y)


BEYOND = [2.0**31, 2.0**31 - 1, -(2.0**31), -(2.0**31) - 1, 3e9, -3e9, 2.0**63, -(2.0**63), 1e30, -1e30]
BEYOND += [math.inf, -math.inf, math.nan, -0.3, 1.7, -1.7]


@pytest.mark.parametrize("length", [5, 96])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("integer", ["int32", "int64"])
@pytest.mark.parametrize("after", ["int32", "int64", "float32", "float64"])
def test_a_cast_of_floats_beyond_all_integers_is_defined(dtype: str, integer: str, after: str, length: int) -> None:
    """LLVM leaves it open; two casts may then become one, with other results than those of NumPy."""

    def program(ops: Any, x: Any) -> tuple[Any, Any]:
        whole = ops.cast(x, dtype=integer)
        return whole, ops.cast(whole, dtype=after)

    x = np.resize(np.array(BEYOND, dtype), length)
    eager, found = (
        opstage.run(program, x, options=opstage.Options(dtype=dtype, backend=backend))
        for backend in ("eager", "compiled")
    )
    for a, b in zip(eager, found):
        assert a.tobytes() == b.tobytes()


def test_float32_stays_float32_beside_constants_of_its_own() -> None:
    third = np.float32(1 / 3)
    load = access.load("float32")

    def kernel(lo, hi, worker, arguments):
        w = memory.int64s(arguments, 4)
        x = load(w[0], 0) * third
        w[1] = x.view(np.int32)
        w[2] = np.float64(load(w[0], 0) * (1 / 3)).view(np.int64)  # a plain number is a float64

    x = np.array([0.7], np.float32)
    words = np.array([x.ctypes.data, 0, 0, 0])
    compiled(kernel)(words)
    assert words[1] == (x[0] * third).view(np.int32)
    assert words[2] == (np.float64(x[0]) * (1 / 3)).view(np.int64)


# Statements ----------------------------------------------------------------------------------------------------------


def loops(int64s, load, store):
    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, 32)
        start, stop, step = w[0], w[1], w[2]
        total, turns, last = 0, 0, -1
        for i in range(start, stop, 3):
            if i % 5 == 0:
                continue
            if i > 40:
                break
            total += i
            last = i
        w[3], w[4] = total, last
        if step != 0:
            for i in range(start, stop, step):
                total, turns = total * 3 + i, turns + 1
        w[5], w[6] = total, turns
        for i in range(start, stop, -2):
            total -= i
        w[7] = total
        n = stop - start
        while n > 3:
            n = n // 2 if n % 2 == 0 else n - 1
            turns += 1
        w[8], w[9] = n, turns
        for i in range(4):
            for j in range(i):
                w[10 + i] += j * i
        first, (second, third) = 1, (2, start)
        w[16], w[17], w[18] = first, second, third
        pair = (third, first) if start < stop else (first, second)
        w[19], w[20] = pair[0], pair[1]
        x = y = turns
        w[21] = x + y

    return kernel


@pytest.mark.parametrize(
    "inputs", [(0, 10, 1), (0, 50, 7), (10, 0, -3), (5, 5, 1), (-7, 8, 2), (8, -7, -1), (3, 9, 0), (0, 1, 100)]
)
def test_statements(inputs: tuple[int, int, int]) -> None:
    agree(loops, *inputs)


def classified(x):
    """A function that returns from several places."""
    if x < 0:
        return -1, x
    if x == 0:
        return 0, 7
    total = 0
    for i in range(x):
        if i > 3:
            return total, i
        total += i
    return total, -1


def calls(int64s, load, store):
    square = lambda x: x * x  # noqa: E731
    scale = 3

    def scaled(x, by):
        return square(x) * by * scale

    def add_to(cells, i, x):
        cells[i] += x

    def kernel(lo, hi, worker, arguments):
        w = int64s(arguments, 32)
        w[1], w[2] = classified(w[0])
        w[3] = scaled(w[0], 2)
        add_to(w, 4, w[0])
        add_to(w, 4, 1)
        both = w, 5
        add_to(*both, w[0])

    return kernel


@pytest.mark.parametrize("x", [-3, 0, 1, 4, 5, 9])
def test_functions(x: int) -> None:
    agree(calls, x)


def test_what_decides_comes_first() -> None:
    """The right side of `and` and `or`, and the side of a choice that is not taken, are not computed."""

    def kernel(lo, hi, worker, arguments):
        w = memory.int64s(arguments, 4)
        nowhere = memory.int64s(w[0], 1)
        w[1] = w[0] != 0 and nowhere[0] == 1
        w[2] = w[0] == 0 or nowhere[0] == 1
        w[3] = nowhere[0] if w[0] != 0 else 5

    words = np.array([0, 9, 9, 9])
    compiled(kernel)(words)
    assert words.tolist() == [0, 0, 1, 5]


def test_a_condition_that_is_known_leaves_the_other_side_out() -> None:
    wide = False

    def kernel(lo, hi, worker, arguments):
        w = memory.int64s(arguments, 3)
        if wide:
            w[1] = no_such_name  # type: ignore[name-defined]  # noqa: F821
        else:
            w[1] = 4
        w[2] = no_such_name if wide else 5  # type: ignore[name-defined]  # noqa: F821

    words = np.array([0, 0, 0])
    compiled(kernel)(words)
    assert words.tolist() == [0, 4, 5]


# What it does not know -----------------------------------------------------------------------------------------------

WRONG = [
    ("w = [1, 2]", "an expression List"),
    ("with w: pass", "a statement With"),
    ("x = int64s(arguments, 1)[0.5 > 1 and 2]\n    x = 1.0", "variable x has two types, int64 and float64"),
    ("x = missing", "name missing is not defined"),
    ("x = lo + arguments", "Add of int64 and uint64"),
    ("x = int64s(arguments)", "int64s: expected 2 arguments, got 1"),
    ("for x in 3: pass", "a loop over something other than a range"),
    ("x = min(lo, key=hi)", "a keyword"),
    ("x = len(lo)", "a call of <built-in function len>"),
    ("a, b = lo", "the values of a tuple and their names differ in number"),
    ("x = int32(lo).view(float64)", "a view of int32 as float64 is not supported"),
    ("x = lo.real", "lacks the attribute real"),
    ("x = min(lo, 0.5)", "expected a value of int64, got a number float64"),
    ("int64s(arguments, 1)[0] = 0.5", "expected a value of int64, got a number float64"),
    ("for x in range(1.5): pass", "expected a value of int64, got a number float64"),
    ("x = lo ** hi", "Pow of int64 and int64"),
    ("x = 1.5 // 0.5", "FloorDiv of float64 and float64"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line[:20] for line, _ in WRONG])
def test_what_it_does_not_know_it_names(line: str, message: str) -> None:
    text = f"def kernel(lo, hi, worker, arguments):\n    {line}"
    space = {"int64s": memory.int64s, "int32": np.int32, "float64": np.float64}
    with pytest.raises(CannotCompile, match=f"<kernel>:2: in kernel: .*{message}|<kernel>:3: in kernel: {message}"):
        lowered(source_of_text(text, space), "kernel")


def test_functions_that_cannot_be_told_apart_are_refused() -> None:
    two = (lambda x: x + 1, lambda x: x + 2)
    with pytest.raises(CannotCompile, match="2 functions named <lambda>"):
        source_of(two[0])
