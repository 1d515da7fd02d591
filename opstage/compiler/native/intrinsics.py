"""Intrinsics of kernels: memory and calls by address, atomic updates of numbers, and waiting until one changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from . import thread_pool as pool
from .frontend import allocated, intrinsic
from .frontend.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, UINT64, VOID, WORDS

# Memory and calls by address ------------------------------------------------------------------------------------------

# Only code that compiles kernels imports this module, since it imports LLVM's types.

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


_WORD, _NUMBER = ir.IntType(64), ir.IntType(32)


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


def _call(builder: Any, function: Any, address: Any, arguments: list[Any]) -> Any:
    return builder.call(builder.inttoptr(address, function.as_pointer()), arguments)


def gemm_by_address(dtype: str, wide: bool) -> Any:
    """Return `gemm(f, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)`: C <- alpha·A·B +
    beta·C.

    Row-major, cblas_?gemm at address f; matrices by address, sizes and leading dimensions in elements.
    """
    real = FLOAT32 if dtype == "float32" else FLOAT64
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


# Threads --------------------------------------------------------------------------------------------------------------

# All accesses are sequentially consistent.


# Offsets on the board; unsigned, like addresses.
_OWNED, _MARK, _DONE, _WAITING, _ASLEEP, _JOB = map(
    np.uint64, (pool.OWNED, pool.MARK, pool.DONE, pool.WAITING, pool.ASLEEP, pool.JOB)
)
_COUNT, _CLOCK, _NANOSLEEP, _SYSCALL, _FUTEX = map(
    np.uint64, (pool.COUNT, pool.CLOCK, pool.NANOSLEEP, pool.SYSCALL, pool.FUTEX)
)
_CLAIMS, _LINE = np.uint64(pool.CLAIMS), np.uint64(pool.LINE)
_SPIN, _JOIN, _LOST, _FACTOR, _LONGEST = pool.SPIN, pool.JOIN, pool.LOST, pool.REST_FACTOR, pool.LONGEST_REST

_PAIR = ir.LiteralStructType([_WORD, _WORD])
_ORDER = "seq_cst"
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE of linux/futex.h
_MONOTONIC, _OF_THIS_THREAD = 1, 3  # CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID of linux/time.h


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic(INT64, UINT64)
def load(builder, address):
    """Return the integer at an address."""
    return builder.load_atomic(_pointer(builder, address), _ORDER, 8)


@intrinsic(VOID, UINT64, INT64)
def store(builder, address, value):
    """Store an integer."""
    builder.store_atomic(value, _pointer(builder, address), _ORDER, 8)


@intrinsic(VOID, UINT64, INT64)
def increase(builder, address, by):
    """Add to an integer in memory."""
    builder.atomic_rmw("add", _pointer(builder, address), by, _ORDER)


@intrinsic(BOOL, UINT64, INT64, INT64)
def replace(builder, address, old, new):
    """Store `new` if the value is `old`; return whether it was."""
    return builder.extract_value(builder.cmpxchg(_pointer(builder, address), old, new, _ORDER, _ORDER), 1)


@intrinsic(INT64, UINT64, INT32)
def read_clock(builder, clock_gettime, clock):
    """Return the nanoseconds of a system clock, by the function at an address."""
    function = ir.FunctionType(_NUMBER, [_NUMBER, _PAIR.as_pointer()])
    place = allocated(builder, _PAIR)
    builder.call(builder.inttoptr(clock_gettime, function.as_pointer()), [clock, place])
    found = builder.load(place)
    seconds = builder.mul(builder.extract_value(found, 0), _WORD(10**9))
    return builder.add(seconds, builder.extract_value(found, 1))


@intrinsic(VOID, UINT64, INT64)
def _pause(builder, nanosleep, nanoseconds):
    """Sleep for nanoseconds, by the system function at an address."""
    function = ir.FunctionType(_NUMBER, [_PAIR.as_pointer(), _PAIR.as_pointer()])
    place, second = allocated(builder, _PAIR), _WORD(10**9)
    parts = builder.udiv(nanoseconds, second), builder.urem(nanoseconds, second)
    for i, part in enumerate(parts):
        builder.store(part, builder.gep(place, [_NUMBER(0), _NUMBER(i)], inbounds=True))
    none = ir.Constant(_PAIR.as_pointer(), None)
    builder.call(builder.inttoptr(nanosleep, function.as_pointer()), [place, none])


@intrinsic(VOID, UINT64, INT64, UINT64, INT64, INT64)
def _futex(builder, syscall, number, address, operation, value):
    """Make the system call futex(2) without a time limit."""
    function = ir.FunctionType(_WORD, [_WORD], var_arg=True)
    none = _WORD(0)
    given = [number, address, operation, value, none, none, none]
    builder.call(builder.inttoptr(syscall, function.as_pointer()), given)


def now(board):
    """Return the current time in nanoseconds."""
    return read_clock(load(board + _CLOCK), _MONOTONIC)


def _worked(board):
    """Return the CPU time of this thread in nanoseconds."""
    return read_clock(load(board + _CLOCK), _OF_THIS_THREAD)


def _sleep(board, address, value):
    """Sleep until `wake` for this address, unless the value has changed. It may end early."""
    _futex(load(board + _SYSCALL), load(board + _FUTEX), address, _WAIT, value & 0xFFFFFFFF)


def _wake(board, address, count):
    """Wake up to `count` threads that sleep there."""
    _futex(load(board + _SYSCALL), load(board + _FUTEX), address, _WAKE, count)


# The threads of a team ----------------------------------------------------------------------------------------------


def take(board):
    """Acquire the team for this thread; return whether it was free."""
    return replace(board + _OWNED, 0, 1)


def give(board):
    """Release the team."""
    store(board + _OWNED, 0)


def do_parts(board, mark, me, count):
    """Run the parts of the job `mark` that no thread has begun, one's own first; return their number.

    The job cannot be replaced while a begun part is not counted as done, so the data read after claiming a part belong
    to it.
    """
    done = 0
    for i in range(count):
        part = me + i
        if part >= count:
            part -= count
        claim = board + _CLAIMS + _LINE * np.uint64(part)
        if load(claim) == mark - 1 and replace(claim, mark - 1, mark):
            job = int64s(board + _JOB, 3)
            function, tasks, own = job[0], job[1], job[2]
            call_kernel(function, tasks * part // count, tasks * (part + 1) // count, part, own)
            done += 1
    return done


def do_job(board, count, function, tasks, own):
    """Run all parts of a job, from the thread that owns the team."""
    job = int64s(board + _JOB, 3)
    job[0], job[1], job[2] = function, tasks, own
    store(board + _DONE, 0)
    mark = load(board + _MARK) + 1
    store(board + _MARK, mark)
    if load(board + _ASLEEP) > 0:
        _wake(board, board + _MARK, count)
    rest = count - do_parts(board, mark, 0, count)
    if rest > 0:
        begin = now(board)
        while load(board + _DONE) != rest:
            if now(board) - begin > _JOIN:
                store(board + _WAITING, 1)
                done = load(board + _DONE)
                if done != rest:
                    _sleep(board, board + _DONE, done)
                store(board + _WAITING, 0)


def be_member(board, me):
    """Run parts of jobs for the lifetime of the process."""
    count = load(board + _COUNT)
    seen, rest, rested = 0, 0, 0
    known = now(board), _worked(board)
    while True:
        last, preempted = now(board), False
        awake = last + _SPIN
        while load(board + _MARK) == seen and not preempted:
            moment = now(board)
            preempted = moment - last > _LOST
            last = moment
            if not preempted and moment > awake:
                increase(board + _ASLEEP, 1)
                _sleep(board, board + _MARK, seen)
                increase(board + _ASLEEP, -1)
                last = now(board)
                awake = last + _SPIN
                known = last, _worked(board)
        mark = load(board + _MARK)
        if mark != seen:
            seen = mark
            last = now(board)
            done = do_parts(board, mark, me, count)
            if done > 0:
                increase(board + _DONE, done)
                if load(board + _WAITING) != 0:
                    _wake(board, board + _DONE, 1)
            preempted = preempted or now(board) - last > _LOST
        if preempted:  # or the part was a long one
            moment, worked = now(board), _worked(board)
            lost = (moment - known[0]) - (worked - known[1])
            if lost > _LOST:
                # Rest in proportion to the lost time; twice as long as before if the last rest ended just now.
                rest = min(max(_FACTOR * lost, 2 * rest if moment - rested < rest else 0), _LONGEST)
                _pause(load(board + _NANOSLEEP), rest)
                moment = rested = now(board)
            known = moment, worked


__all__ = ["be_member", "do_job", "give", "take"]
