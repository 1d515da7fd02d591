"""Claims: statements about what a program's outputs read, to be proved for every allowed size.

opstage.check(program, x, claims=[Causal("T"), Independent("B")])
@opstage.shapes("x: B T 64", claims=["causal:T", "independent:B"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final

from .errors import UsageError, nearest


@final
@dataclass(frozen=True)
class Causal:
    """An output at index t of the named dim `axis` only reads inputs at indices s <= t."""

    axis: str
    rule: ClassVar = "causal"

    def __str__(self) -> str:
        return f"causal:{self.axis}"

    def breaks(self, source: int, target: int) -> bool:
        """Return whether the claim forbids the output at `target` to read the input at `source`."""
        return source > target


@final
@dataclass(frozen=True)
class Independent:
    """An output at index b of the named dim `axis` only reads inputs at the same index."""

    axis: str
    rule: ClassVar = "independent"

    def __str__(self) -> str:
        return f"independent:{self.axis}"

    def breaks(self, source: int, target: int) -> bool:
        """Return whether the claim forbids the output at `target` to read the input at `source`."""
        return source != target


@final
@dataclass(frozen=True)
class Window:
    """An output at index t of the named dim `axis` only reads inputs at indices from t - size to t + size.

    Raises:
        UsageError: a size that is no integer >= 0.
    """

    axis: str
    size: int
    rule: ClassVar = "window"

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 0:
            raise UsageError(f"the size of a window is an int that is at least 0, not {self.size!r}")

    def __str__(self) -> str:
        return f"window:{self.axis}:{self.size}"

    def breaks(self, source: int, target: int) -> bool:
        """Return whether the claim forbids the output at `target` to read the input at `source`."""
        return abs(source - target) > self.size


@final
@dataclass(frozen=True)
class Uses:
    """At least one output depends on the input `name`, a tensor or a tree: `x`, `params.bias`."""

    name: str
    rule: ClassVar = "uses"

    def __str__(self) -> str:
        return f"uses:{self.name}"


@final
@dataclass(frozen=True)
class Ignores:
    """No output depends on the input `name`, a tensor or a tree."""

    name: str
    rule: ClassVar = "ignores"

    def __str__(self) -> str:
        return f"ignores:{self.name}"


AlongAxis: TypeAlias = "Causal | Independent | Window"
Claim: TypeAlias = "Causal | Independent | Window | Uses | Ignores"

_KINDS: dict[str, Callable[[str], Claim]] = {
    "causal": Causal,
    "independent": Independent,
    "uses": Uses,
    "ignores": Ignores,
}
EXPECTED = "causal:T, independent:B, window:T:3, uses:x or ignores:mask"


def read_claims(given: Iterable[Claim | str] | Claim | str) -> tuple[Claim, ...]:
    """Parse claims, or texts such as `causal:T,independent:B`. Raises UsageError for anything else."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = (given,)
    found: dict[Claim, None] = {}
    for each in given:
        if isinstance(each, str):
            found |= dict.fromkeys(_read(text.strip()) for text in each.split(",") if text.strip())
        elif isinstance(each, (Causal, Independent, Window, Uses, Ignores)):
            found[each] = None
        else:
            raise UsageError(f"{each!r} is no claim; expected one such as {EXPECTED}")
    return tuple(found)


def _read(text: str) -> Claim:
    kind, *rest = [part.strip() for part in text.split(":")]
    if kind == "window" and len(rest) == 2 and rest[0] and rest[1].isdecimal():
        return Window(rest[0], int(rest[1]))
    if kind in _KINDS and len(rest) == 1 and rest[0]:
        return _KINDS[kind](rest[0])
    known: Sequence[str] = (*_KINDS, "window")
    raise UsageError(f"{text!r} is no claim{'' if kind in known else nearest(kind, known)}; expected {EXPECTED}")
