"""Prefetching: the same batches in the same order, errors where they belong, no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from opstage.data import Loader, Prefetch, from_arrays, loader
from opstage.data.loader import Batches
from opstage.ops.errors import UsageError

ROWS = from_arrays(x=np.arange(46.0).reshape(23, 2), y=np.arange(23))


def threads() -> int:
    return sum(thread.name == "opstage-prefetch" for thread in threading.enumerate())


def listed(batches: Batches, epoch: int, start: int = 0) -> list[Any]:
    return [tuple(array.tolist() for array in batch) for batch in batches.epoch(epoch, start)]


@pytest.mark.parametrize("depth", [1, 2, 7, 100])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_order_is_the_loaders(depth: int, shuffle: bool) -> None:
    loader = Loader(ROWS, 4, seed=5, shuffle=shuffle)
    ahead = Prefetch(loader, depth)
    assert len(ahead) == len(loader) == 6
    for epoch, start in [(0, 0), (1, 0), (0, 3), (2, 5), (2, 6), (0, 0)]:
        assert listed(ahead, epoch, start) == listed(loader, epoch, start) == listed(loader, epoch)[start:]
        assert threads() == 0


def test_epochs_may_run_side_by_side() -> None:
    loader = Loader(ROWS, 4)
    ahead = Prefetch(loader)
    pairs = list(zip(ahead.epoch(0), ahead.epoch(1), strict=True))
    assert [batch[1].tolist() for batch, _ in pairs] == [y for _, y in listed(loader, 0)]
    assert [batch[1].tolist() for _, batch in pairs] == [y for _, y in listed(loader, 1)]
    assert threads() == 0


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_early_end_stops_the_thread(taken: int) -> None:
    batches = Prefetch(Loader(ROWS, 2), 3).epoch(0)
    for _ in range(taken):
        next(batches)
    assert threads() == (taken > 0)
    batches.close()
    assert threads() == 0


def test_an_error_in_the_loop_stops_the_thread() -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in Prefetch(Loader(ROWS, 2)).epoch(0):
            raise ZeroDivisionError
    assert threads() == 0


class Failing:
    """Its batch number 3 cannot be read."""

    def __init__(self) -> None:
        self.made = 0
        self.closed_by = ""

    def __len__(self) -> int:
        return 9

    def epoch(self, epoch: int, start: int = 0) -> Generator[tuple[Any, ...]]:
        try:
            for number in range(start, 9):
                if number == 3:
                    raise UsageError("shard 3: row 7 is torn")
                self.made += 1
                yield (np.array([number]),)
        finally:
            self.closed_by = threading.current_thread().name


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_an_error_comes_at_its_batch(depth: int) -> None:
    seen = []
    with pytest.raises(UsageError, match="shard 3: row 7 is torn"):
        for (batch,) in Prefetch(Failing(), depth).epoch(0):
            seen.append(int(batch[0]))
    assert seen == [0, 1, 2]
    assert threads() == 0


def test_an_error_that_nobody_reached_is_nobodys() -> None:
    batches = Prefetch(Failing(), 50).epoch(0)
    next(batches)
    batches.close()
    assert threads() == 0


def test_a_stuck_source_does_not_keep_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_PATIENCE", 0.01)
    freed = threading.Event()

    class Stuck(Failing):
        def epoch(self, epoch: int, start: int = 0) -> Generator[tuple[Any, ...]]:
            yield (np.array([0]),)
            freed.wait()

    batches = Prefetch(Stuck()).epoch(0)
    next(batches)
    batches.close()
    assert threads() == 1
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "opstage-prefetch")
    freed.set()
    thread.join()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_than_depth_batches_are_made_ahead(depth: int) -> None:
    source = Failing()
    batches = Prefetch(source, depth).epoch(4, start=4)
    for taken in range(1, 4):
        next(batches)
        assert source.made <= taken + depth
    batches.close()
    assert source.closed_by == "opstage-prefetch"


@pytest.mark.parametrize("depth", [0, -1, 1.5, True])
def test_bad_depths(depth: Any) -> None:
    with pytest.raises(UsageError, match="is not a number of batches"):
        Prefetch(Loader(ROWS, 2), depth)


def test_bad_starts() -> None:
    for batches in (Loader(ROWS, 4), Prefetch(Loader(ROWS, 4))):
        for start in (-1, 7):
            with pytest.raises(UsageError, match=r"is not a batch of an epoch, which has 6; expected 0 to 6"):
                list(batches.epoch(0, start))
        with pytest.raises(UsageError, match="epoch=-1 does not exist"):
            batches.epoch(-1)
