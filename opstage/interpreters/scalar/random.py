"""Random bits of one element: the uniform draw of `opstage.ops.splitmix`, on words of 64 bits that wrap around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def splitmix64(word: Callable[[int], Any]) -> Function:
    """The finalizer of `opstage.ops.splitmix`."""
    gamma, first, second = word(0x9E3779B97F4A7C15), word(0xBF58476D1CE4E5B9), word(0x94D049BB133111EB)
    by30, by27, by31 = word(30), word(27), word(31)

    def formula(x: Any) -> Any:
        z = x + gamma
        z = (z ^ (z >> by30)) * first
        z = (z ^ (z >> by27)) * second
        return z ^ (z >> by31)

    return formula


def uniform_integer(word: Callable[[int], Any], mix: Function) -> Function:
    """splitmix64(key + i) >> 40: element i of the stream of `key`, as an integer in [0, 2^24); `mix` is splitmix64."""
    by40 = word(40)

    def formula(key: Any, i: Any) -> Any:
        return mix(key + i) >> by40

    return formula
