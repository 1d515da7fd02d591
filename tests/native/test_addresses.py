"""The addresses of arrays, read from their objects: those that NumPy tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage.interpreters import host

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
