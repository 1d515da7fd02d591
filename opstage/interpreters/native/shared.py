"""Intrinsics of a team's threads: atomic updates of numbers, and waiting until one changes.

As `memory`, this module is imported by what compiles, not before. All accesses are sequentially consistent.
"""

# mypy: disable-error-code="attr-defined, no-untyped-call, untyped-decorator"
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from . import team
from .memory import call_kernel, int64s

# Places on the board; unsigned, as addresses are.
_OWNED, _MARK, _DONE, _WAITING, _ASLEEP, _JOB = (
    np.uint64(at) for at in (team.OWNED, team.MARK, team.DONE, team.WAITING, team.ASLEEP, team.JOB)
)
_COUNT, _CLOCK, _NANOSLEEP, _SYSCALL, _FUTEX = (
    np.uint64(at) for at in (team.COUNT, team.CLOCK, team.NANOSLEEP, team.SYSCALL, team.FUTEX)
)
_CLAIMS, _LINE = np.uint64(team.CLAIMS), np.uint64(team.LINE)
_SPIN, _JOIN, _LOST, _FACTOR, _LONGEST = team.SPIN, team.JOIN, team.LOST, team.REST_FACTOR, team.LONGEST_REST

_ADDRESS, _WORD, _NUMBER = types.uintp, ir.IntType(64), ir.IntType(32)
_ORDER = "seq_cst"
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE of linux/futex.h
_MONOTONIC, _OF_THIS_THREAD = 1, 3  # CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID of linux/time.h


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic
def load(typing, address):  # type: ignore[no-untyped-def]
    """The integer at an address."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load_atomic(_at(builder, values[0]), _ORDER, 8)

    return types.int64(_ADDRESS), generate


@intrinsic
def store(typing, address, value):  # type: ignore[no-untyped-def]
    """Put an integer there."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store_atomic(values[1], _at(builder, values[0]), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(_ADDRESS, types.int64), generate


@intrinsic
def increase(typing, address, by):  # type: ignore[no-untyped-def]
    """Add to the integer there."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.atomic_rmw("add", _at(builder, values[0]), values[1], _ORDER)
        return context.get_dummy_value()

    return types.void(_ADDRESS, types.int64), generate


@intrinsic
def replace(typing, address, old, new):  # type: ignore[no-untyped-def]
    """Put `new` there if `old` is there; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        found = builder.cmpxchg(_at(builder, values[0]), values[1], values[2], _ORDER, _ORDER)
        return builder.extract_value(found, 1)

    return types.boolean(_ADDRESS, types.int64, types.int64), generate


@intrinsic
def _time(typing, clock_gettime, clock):  # type: ignore[no-untyped-def]
    """Nanoseconds on a clock of the system, whose function is at an address."""
    pair = ir.LiteralStructType([_WORD, _WORD])
    function = ir.FunctionType(_NUMBER, [_NUMBER, pair.as_pointer()])

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = cgutils.alloca_once(builder, pair)
        builder.call(builder.inttoptr(values[0], function.as_pointer()), [values[1], place])
        found = builder.load(place)
        seconds = builder.mul(builder.extract_value(found, 0), ir.Constant(_WORD, 10**9))
        return builder.add(seconds, builder.extract_value(found, 1))

    return types.int64(_ADDRESS, types.int32), generate


@intrinsic
def _pause(typing, nanosleep, nanoseconds):  # type: ignore[no-untyped-def]
    """So many nanoseconds, by the system's function at an address."""
    pair = ir.LiteralStructType([_WORD, _WORD])
    function = ir.FunctionType(_NUMBER, [pair.as_pointer(), pair.as_pointer()])

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, second = cgutils.alloca_once(builder, pair), ir.Constant(_WORD, 10**9)
        parts = builder.udiv(values[1], second), builder.urem(values[1], second)
        for i, part in enumerate(parts):
            builder.store(part, cgutils.gep_inbounds(builder, place, 0, i))
        none = ir.Constant(pair.as_pointer(), None)
        builder.call(builder.inttoptr(values[0], function.as_pointer()), [place, none])
        return context.get_dummy_value()

    return types.void(_ADDRESS, types.int64), generate


@intrinsic
def _futex(typing, syscall, number, address, operation, value):  # type: ignore[no-untyped-def]
    """The system call futex(2) without a time limit."""
    function = ir.FunctionType(_WORD, [_WORD], var_arg=True)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        at, number, *rest = values
        none = ir.Constant(_WORD, 0)
        builder.call(builder.inttoptr(at, function.as_pointer()), [number, *rest, none, none, none])
        return context.get_dummy_value()

    return types.void(_ADDRESS, types.int64, _ADDRESS, types.int64, types.int64), generate


@njit
def now(board):  # type: ignore[no-untyped-def]
    """Nanoseconds that have passed."""
    return _time(load(board + _CLOCK), _MONOTONIC)


@njit
def _worked(board):  # type: ignore[no-untyped-def]
    """Nanoseconds for which this thread has had a core."""
    return _time(load(board + _CLOCK), _OF_THIS_THREAD)


@njit
def _sleep(board, address, value):  # type: ignore[no-untyped-def]
    """Until `wake` is called for this address; not at all if `value` is not there any more. It may end early."""
    _futex(load(board + _SYSCALL), load(board + _FUTEX), address, _WAIT, value & 0xFFFFFFFF)


@njit
def _wake(board, address, count):  # type: ignore[no-untyped-def]
    """So many of those who sleep there."""
    _futex(load(board + _SYSCALL), load(board + _FUTEX), address, _WAKE, count)


# What the threads of a team do ---------------------------------------------------------------------------------------


@njit
def take(board):  # type: ignore[no-untyped-def]
    """Whether the team is this thread's from now on, until it gives it back."""
    return replace(board + _OWNED, 0, 1)


@njit
def give(board):  # type: ignore[no-untyped-def]
    """Give the team back."""
    store(board + _OWNED, 0)


@njit
def do_parts(board, mark, me, count):  # type: ignore[no-untyped-def]
    """Do those parts of the job `mark` that nobody has begun, one's own first; how many they were.

    A part that was begun keeps the job what it is until it is counted as done. So what is read after that is of it.
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


@njit
def do_job(board, count, function, tasks, own):  # type: ignore[no-untyped-def]
    """Have all parts of a job done, by whoever has the team."""
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


@njit
def be_member(board, me):  # type: ignore[no-untyped-def]
    """Do parts of jobs as long as the process lives."""
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
                # For a time in proportion to what was lost; twice as long as before if that was over only now.
                rest = min(max(_FACTOR * lost, 2 * rest if moment - rested < rest else 0), _LONGEST)
                _pause(load(board + _NANOSLEEP), rest)
                moment = rested = now(board)
            known = moment, worked


__all__ = ["be_member", "do_job", "give", "take"]
