"""A peak as a formula: the greatest of a few polynomials in the named dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ....ops.dims import Dim, DimExpr, evaluate
from ....ops.dims.polynomial import Monomial

Rows = npt.NDArray[np.int64]


@final
class Formula:
    """max(p, q, …) of polynomials in named dims; `str` is its text."""

    __slots__ = ("terms",)

    def __init__(self, terms: Sequence[Dim]):
        self.terms = tuple(terms)

    @classmethod
    def greatest(cls, rows: Rows, monomials: Sequence[Monomial], scope: Any) -> Formula:
        """Of polynomials given by their coefficients, a row each, those that are greatest somewhere.

        A polynomial is left out that is nowhere greater than another one, or than a mean of two others; names stand for
        no negative numbers.
        """
        found = _upper(rows)
        terms: list[Dim] = []
        for row in found.tolist():
            polynomial = {monomial: value for monomial, value in zip(monomials, row) if value}
            terms.append(row[0] if scope is None else scope.intern(polynomial))
        return cls(terms)

    @property
    def names(self) -> tuple[str, ...]:
        """The named dims that it speaks of."""
        found: dict[str, None] = {}
        for term in self.terms:
            if isinstance(term, DimExpr):
                found.update(dict.fromkeys(atom.text for monomial in term.polynomial for atom in monomial))
        return tuple(found)

    def __call__(self, sizes: Mapping[str, int]) -> int:
        """The number at given sizes; raises MissingSizeError for a name without one."""
        return max(evaluate(term, sizes) for term in self.terms)

    def __str__(self) -> str:
        texts = [f"{term:,}" if isinstance(term, int) else str(term) for term in self.terms]
        return texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"

    __repr__ = __str__


def _upper(rows: Rows) -> Rows:
    """The rows that are not, in every column, at most another row, nor at most a mean of two other rows."""
    rows = np.unique(rows, axis=0)[::-1]
    kept: list[npt.NDArray[np.int64]] = []
    for row in rows:  # from the greatest first column on
        if not any((other >= row).all() for other in kept):
            kept = [other for other in kept if not (row >= other).all()]
            kept.append(row)
    i = 0
    while i < len(kept):
        others = kept[:i] + kept[i + 1 :]
        if _under_a_mean(kept[i], others):
            kept = others
        else:
            i += 1
    return np.array(kept)


def _under_a_mean(row: npt.NDArray[np.int64], others: Sequence[npt.NDArray[np.int64]]) -> bool:
    """Whether s·p + (1 - s)·q is at least the row in every column, for two of the others and an s in [0, 1]."""
    for i, p in enumerate(others):
        for q in others[:i]:
            # s·(p - q) >= row - q in every column
            slope, wanted = (p - q).astype(np.float64), (row - q).astype(np.float64)
            if (wanted[slope == 0] > 0).any():
                continue
            least = np.max(wanted[slope > 0] / slope[slope > 0], initial=0.0)
            most = np.min(wanted[slope < 0] / slope[slope < 0], initial=1.0)
            if least <= most:
                return True
    return False
