"""What is asked of many arrays at once, their addresses and how they lie: what NumPy says of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage.ops import host_arrays as host

READERS = [host.addresses_of, host._ask_addresses]


def told(arrays: list[Any]) -> list[int]:
    return [array.__array_interface__["data"][0] for array in arrays]


@pytest.mark.parametrize("read", READERS)
def test_they_are_those_of_the_first_elements(read: Callable[..., Any]) -> None:
    x = np.arange(24.0).reshape(4, 6)
    frozen = x[1:]
    frozen.flags.writeable = False
    arrays = [x, x[1:, 2:], x[::-1], x.T, frozen, np.zeros(()), np.zeros(1 << 22, np.uint8), np.ma.masked_array(x)]
    assert read(arrays).tolist() == told(arrays) == [host.address_of(array) for array in arrays]
    assert read(arrays * 30).tolist() == told(arrays) * 30
    assert read([]).tolist() == []


@pytest.mark.parametrize("read", READERS)
def test_an_array_that_has_moved_is_found_where_it_is_now(read: Callable[..., Any]) -> None:
    x = np.zeros(4)
    read([x])
    x.resize(1 << 20, refcheck=False)
    y, before = np.ones(1 << 20), x
    assert read([x, y]).tolist() == told([x, y])
    x = y
    assert read([x, before]).tolist() == told([y, before])


def kinds() -> dict[str, Any]:
    x = np.arange(24.0).reshape(4, 6)
    frozen = np.array(x)
    frozen.flags.writeable = False
    return {
        "packed": x,
        "rows": x[1:],
        "columns": x[:, 1:],
        "turned": x.T,
        "backwards": x[::-1],
        "one row": x[:1, ::1],
        "unaligned": np.zeros(193, np.uint8)[1:].view(np.float64),
        "read-only": frozen,
        "no axes": np.array(3.0),
        "number": np.float64(3.0),
        "nothing": np.zeros((0, 3)),
        "masked": np.ma.masked_array(x),
        "masked, turned": np.ma.masked_array(x).T,
    }


@pytest.mark.parametrize("kind", kinds())
def test_arrays_are_packed_together_as_one_by_one(kind: str) -> None:
    given = kinds()
    plain = [given["packed"], given["no axes"], given["read-only"]]
    for arrays in ([given[kind]], [*plain, given[kind]], [given[kind], *plain], [*given.values(), given[kind]]):
        found = host.all_packed(arrays)
        for x, y in zip(found, arrays, strict=True):
            once = host.packed(y)
            assert (x is y) == (once is y)
            assert x.flags.c_contiguous and x.flags.aligned and isinstance(x, np.ndarray)
            np.testing.assert_array_equal(x, y)
    assert host.all_packed([]) == []
