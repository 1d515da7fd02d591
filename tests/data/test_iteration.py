"""`for batch in loader`: the next epoch each time, with and without a thread, however the last one ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage.data import Loader, Prefetch, from_arrays

DATA = from_arrays(x=np.arange(10.0), y=np.arange(10))


def rows(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


@pytest.mark.parametrize("wrap", [lambda loader: loader, lambda loader: Prefetch(loader, depth=2)], ids=["", "ahead"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_loop_is_the_next_epoch(wrap: Any, shuffle: bool) -> None:
    loader = wrap(Loader(DATA, 4, seed=3, shuffle=shuffle))
    seen = [rows(loader) for _ in range(3)]
    assert seen == [rows(loader.epoch(k)) for k in range(3)]
    assert all(len(epoch) == len(loader) == 3 for epoch in seen)
    assert all(sorted(row for batch in epoch for row in batch) == list(range(10)) for epoch in seen)
    assert (seen[0] != seen[1]) == shuffle
    for _ in loader:
        break  # has been epoch 3
    assert rows(loader) == rows(loader.epoch(4))
    first, second = iter(loader), iter(loader)
    assert [rows(second), rows(first)] == [rows(loader.epoch(6)), rows(loader.epoch(5))]
    assert rows(wrap(Loader(DATA, 4, seed=3, shuffle=shuffle))) == seen[0]


def test_a_loop_has_no_part_in_what_is_asked_for_by_number() -> None:
    loader = Loader(DATA, 4, seed=3)
    before = rows(loader.epoch(0))
    list(loader)
    assert rows(loader.epoch(0)) == before
    assert rows(Loader(DATA, 4, seed=3)) == before
