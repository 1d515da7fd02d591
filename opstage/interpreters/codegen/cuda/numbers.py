"""The numeric constants of a GPU kernel: 0, 1 and infinities are in its source, others are arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

from typing_extensions import override

from ..formulas import Constants


@final
class Numbers(Constants):
    """Makes constants arguments, so that other rates, bounds and exponents share a kernel, whose compilation takes a
    large part of a second.

    `argument` returns the name of a new argument with this value. Equal values are not shared, so that the source does
    not depend on which are equal.
    """

    __slots__ = ("_argument",)

    def __init__(self, argument: Callable[[Any], str]):
        super().__init__()
        self._argument = argument

    @override
    def named(self, value: Any) -> str:
        own = value == 1 or abs(value) == math.inf or (value == 0 and not math.copysign(1, value) < 0)
        return super().named(value) if own else self._argument(value)
