"""The numbers of a kernel for a GPU: those that formulas are made with stand in its text, others are arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

from typing_extensions import override

from ..formulas import Constants


@final
class Numbers(Constants):
    """Other rates, bounds and exponents so share a kernel, which is compiled for a good part of a second.

    `argument` gives the name of a new argument of this value. Each is one of its own, so that the text does not tell
    which of them are equal.
    """

    __slots__ = ("_argument",)

    def __init__(self, argument: Callable[[Any], str]):
        super().__init__()
        self._argument = argument

    @override
    def named(self, value: Any) -> str:
        own = value == 1 or abs(value) == math.inf or (value == 0 and not math.copysign(1, value) < 0)
        return super().named(value) if own else self._argument(value)
