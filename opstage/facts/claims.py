"""Claims: statements about a program that a proof holds for every allowed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

from .dependence.fact import Span
from .dependence.sizes import at_most_proved


@final
@dataclass(frozen=True)
class Causal:
    """An output at index t of axis `axis`, a named dim, reads inputs at indices s <= t alone."""

    axis: str

    def allows(self, span: Span) -> bool:
        """Whether the claim permits sources of a span beside the index t, or of one that has no index."""
        return span.by in (0, 1) and span.high is not None and at_most_proved(span.high, 0)

    def breaks(self, source: int, target: int) -> bool:
        """Whether the claim forbids the output at `target` to read the input at `source`."""
        return source > target


@final
@dataclass(frozen=True)
class Independent:
    """An output at index b of axis `axis`, a named dim, reads inputs at the same index alone."""

    axis: str

    def allows(self, span: Span) -> bool:
        """Whether the claim permits sources of a span beside the index b."""
        return _within(span, 0)

    def breaks(self, source: int, target: int) -> bool:
        """Whether the claim forbids the output at `target` to read the input at `source`."""
        return source != target


@final
@dataclass(frozen=True)
class Window:
    """An output at index t of axis `axis`, a named dim, reads inputs at indices from t - size to t + size alone."""

    axis: str
    size: int

    def allows(self, span: Span) -> bool:
        """Whether the claim permits sources of a span beside the index t."""
        return _within(span, self.size)

    def breaks(self, source: int, target: int) -> bool:
        """Whether the claim forbids the output at `target` to read the input at `source`."""
        return abs(source - target) > self.size


def _within(span: Span, distance: int) -> bool:
    if span.by != 1 or span.low is None or span.high is None:
        return False
    return at_most_proved(-distance, span.low) and at_most_proved(span.high, distance)


Claim: TypeAlias = "Causal | Independent | Window"
