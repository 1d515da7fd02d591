"""Memory of a GPU: what was given back is found again by size, and copies go through two halves of pinned memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from opstage.compiler.gpu.memory import SizeClasses, Staging, size_class

# Size classes ---------------------------------------------------------------------------------------------------------


def test_sizes_are_rounded_up_by_an_eighth_at_most() -> None:
    assert [size_class(n) for n in (0, 1, 512, 513, 4096, 4097, 8192, 8193)] == [
        512,
        512,
        512,
        1024,
        4096,
        4608,
        8192,
        9216,
    ]
    sizes = np.random.default_rng(0).integers(5000, 2**34, 500)
    for n in map(int, sizes):
        assert n <= size_class(n) <= n * 1.125 + 1
        assert size_class(size_class(n)) == size_class(n)
        assert size_class(n) % 512 == 0


def test_what_was_given_back_is_taken_again_until_it_is_trimmed() -> None:
    made: list[int] = []
    ended: list[int] = []

    def make(nbytes: int) -> int:
        made.append(nbytes)
        return len(made)

    classes = SizeClasses(make, ended.append)
    first, second = classes.take(1000), classes.take(900)
    assert (first, second, made, classes.kept) == (1, 2, [1024, 1024], 0)
    classes.give(first, 1000)
    assert classes.kept == 1024
    assert classes.take(600) == first
    assert classes.take(100) == 3
    classes.give(first, 600)
    classes.give(3, 100)
    assert classes.empty_cache() == 1536
    assert (sorted(ended), classes.kept) == ([1, 3], 0)
    assert classes.take(1000) == 4


def test_a_block_that_cannot_be_made_leaves_the_count() -> None:
    def fail(nbytes: int) -> int:
        raise MemoryError

    classes = SizeClasses(fail, lambda block: None)
    with pytest.raises(MemoryError):
        classes.take(10)
    assert classes.kept == 0


# Staging --------------------------------------------------------------------------------------------------------------


class LateCopies:
    """Copies that are done when their event is waited for, and not before."""

    def __init__(self) -> None:
        self.device = np.zeros(1000, np.uint8)
        self.host: Any = None
        self.waiting: list[Any] = []
        self.said: list[str] = []

    def pinned(self, nbytes: int) -> int:
        self.host = (ctypes.c_uint8 * nbytes)()
        self.said.append(f"pinned {nbytes}")
        return ctypes.addressof(self.host)

    def copy_to_device(self, target: int, host: int, nbytes: int) -> None:
        self.said.append(f"in {nbytes}")
        self.waiting.append(lambda: ctypes.memmove(self.device.ctypes.data + target, host, nbytes))

    def copy_to_host(self, host: int, source: int, nbytes: int) -> None:
        self.said.append(f"out {nbytes}")
        self.waiting.append(lambda: ctypes.memmove(host, self.device.ctypes.data + source, nbytes))

    def synchronize(self) -> None:
        self.said.append("all")
        self.event().sync()

    def event(self) -> Any:
        copies, count = self, len(self.waiting)

        class Event:
            def sync(self) -> None:
                copies.said.append("wait")
                for index in range(count):
                    copies.waiting[index]()
                    copies.waiting[index] = lambda: None

        return Event()


@pytest.mark.parametrize("count", [0, 1, 8, 9, 16, 17, 100])
def test_what_is_written_is_read_back(count: int) -> None:
    copies = LateCopies()
    staging = Staging(copies, half=32)
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    given = x.copy()
    staging.write(40, given)
    given[:] = 0  # the caller may change it at once
    back = np.empty_like(x)
    staging.read(40, back)
    np.testing.assert_array_equal(back, x)


def test_a_half_is_waited_for_before_it_is_filled_again_and_no_sooner() -> None:
    copies = LateCopies()
    staging = Staging(copies, half=32)
    for _ in range(3):
        staging.write(0, np.ones(8, np.float32))
    assert copies.said == ["pinned 64", "in 32", "in 32", "wait", "in 32"]


def test_masks_and_single_numbers_are_copied() -> None:
    staging = Staging(LateCopies(), half=32)
    for array in (np.array([True, False, True]), np.array(7, np.int64), np.ones((2, 3), np.int32)):
        staging.write(0, array)
        back = np.empty_like(array)
        staging.read(0, back)
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("wrote", [True, False])
def test_a_half_whose_copy_was_not_waited_for_is_not_filled_before_it_is_done(wrote: bool) -> None:
    copies = LateCopies()
    staging = Staging(copies, half=32)
    staging.write(0, np.arange(16, dtype=np.float32))
    np.testing.assert_array_equal(staging_read(staging), np.arange(16))
    event = copies.event

    def fails() -> Any:
        raise RuntimeError("no event")

    copies.event = fails  # type: ignore[method-assign]
    first = np.full(8, 7, np.float32)
    with pytest.raises(RuntimeError, match="no event"):
        staging.write(0, first) if wrote else staging.read(0, first)
    copies.event = event  # type: ignore[method-assign]
    copies.said.clear()
    staging.write(32, np.full(8, 8, np.float32))
    staging.write(64, np.full(8, 9, np.float32))  # into the half of the copy that failed
    assert copies.said.count("all") == 1
    expected = [*([7] * 8 if wrote else range(8)), *[8] * 8, *[9] * 8]
    np.testing.assert_array_equal(staging_read(staging, 24), expected)


def staging_read(staging: Staging, count: int = 16) -> Any:
    found = np.empty(count, np.float32)
    staging.read(0, found)
    return found
