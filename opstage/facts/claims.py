"""Claims: statements about a program that a proof holds for every allowed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

from .dependence import LE, SAME


@final
@dataclass(frozen=True)
class Causal:
    """An output at index t of axis `axis`, a named dim, reads inputs at indices s <= t alone."""

    axis: str

    @property
    def allowed(self) -> frozenset[str]:
        """The relations of s to t that the claim permits."""
        return frozenset({SAME, LE})

    def breaks(self, source: int, target: int) -> bool:
        """Whether the claim forbids the output at `target` to read the input at `source`."""
        return source > target


@final
@dataclass(frozen=True)
class Independent:
    """An output at index b of axis `axis`, a named dim, reads inputs at the same index alone."""

    axis: str

    @property
    def allowed(self) -> frozenset[str]:
        """The relations of s to t that the claim permits."""
        return frozenset({SAME})

    def breaks(self, source: int, target: int) -> bool:
        """Whether the claim forbids the output at `target` to read the input at `source`."""
        return source != target


Claim: TypeAlias = "Causal | Independent"
