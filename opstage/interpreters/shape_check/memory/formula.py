"""A peak as a formula: the maximum of a few polynomials in the named dims, each fitted to values at a few sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ....ops.dims import Dim, DimExpr, DimScope, evaluate
from ....ops.dims.polynomial import Monomial, names_of

Rows = npt.NDArray[np.int64]


Kept: TypeAlias = Callable[[Mapping[str, int]], int]
"""Returns the bytes of the workspace kept between kernels, at given sizes."""


@final
class Formula:
    """The maximum of polynomials in named dims, plus the kept workspace, which depends on caches and threads.

    `str` shows the workspace at moderate sizes; a call with sizes returns the number for those.
    """

    __slots__ = ("terms", "_kept", "_usually_kept")

    def __init__(self, terms: Sequence[Dim], kept: Kept = lambda sizes: 0, usually_kept: int = 0):
        self.terms = tuple(terms)
        self._kept = kept
        self._usually_kept = usually_kept

    @classmethod
    def greatest(cls, rows: Rows, monomials: Sequence[Monomial], scope: Any, kept: Kept, usually_kept: int) -> Formula:
        """Build from polynomials, given as rows of coefficients, those that are the maximum somewhere.

        A polynomial is dropped if it never exceeds another one, or a mean of two others; names are nonnegative.
        """
        terms: list[Dim] = []
        for row in _upper(rows).tolist():
            polynomial = {monomial: value for monomial, value in zip(monomials, row) if value}
            terms.append(row[0] if scope is None else scope.intern(polynomial))
        return cls(terms, kept, usually_kept)

    @property
    def names(self) -> tuple[str, ...]:
        """The named dims in it."""
        found: dict[str, None] = {}
        for term in self.terms:
            if isinstance(term, DimExpr):
                found.update(dict.fromkeys(name.text for name in names_of(term.polynomial)))
        return tuple(found)

    def __call__(self, sizes: Mapping[str, int]) -> int:
        """Return the number of bytes at given sizes; raises MissingSizeError for a name without one."""
        return max(evaluate(term, sizes) for term in self.terms) + self._kept(sizes)

    def __str__(self) -> str:
        texts = [f"{term:,}" if isinstance(term, int) else str(term) for term in self.terms]
        text = texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"
        return f"{text} + {self._usually_kept:,}" if self._usually_kept else text

    __repr__ = __str__


def _upper(rows: Rows) -> Rows:
    """Return the rows that are not dominated, in every column, by another row or by a mean of two other rows."""
    rows = _undominated(rows)
    first = _greatest_somewhere(rows)
    rows = np.concatenate([rows[first], rows[~first & ~_under_a_mean(rows, rows[first])]])
    i = int(first.sum())
    while i < len(rows):  # only few are left
        others = np.delete(rows, i, axis=0)
        if _under_a_mean(rows[i : i + 1], others)[0]:
            rows = others
        else:
            i += 1
    return rows


def _undominated(rows: Rows) -> Rows:
    """Return the rows that are not dominated in every column by another one."""
    rows = np.unique(rows, axis=0)
    rows = rows[np.argsort(-rows.sum(axis=1, dtype=np.float64), kind="stable")]
    kept = []
    while len(rows):
        kept.append(rows[0])
        rows = rows[(rows > rows[0]).any(axis=1)]
    return np.array(kept)


def _greatest_somewhere(rows: Rows) -> npt.NDArray[np.bool_]:
    """Mark rows that are the maximum for one of some weights of the columns; a sufficient test only."""
    scale = rows.max(axis=0).astype(np.float64)
    weights = np.exp(np.random.default_rng(0).normal(0, 3, (_TRIALS, rows.shape[1]))) / np.maximum(scale, 1)
    found = np.zeros(len(rows), np.bool_)
    found[np.argmax(rows @ weights.T, axis=0)] = True
    return found


_TRIALS = 64


def _under_a_mean(rows: Rows, others: Rows) -> npt.NDArray[np.bool_]:
    """For each row, whether s·p + (1 - s)·q dominates it in every column, for two of the others and an s in [0, 1]."""
    found = np.zeros(len(rows), np.bool_)
    for i, q in enumerate(others):
        slope = (others[:i] - q)[:, None].astype(np.float64)  # s·(p - q) ≥ row - q, in every column
        wanted = (rows - q)[None].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = wanted / slope
        least = np.max(bound, axis=2, initial=0.0, where=slope > 0)
        most = np.min(bound, axis=2, initial=1.0, where=slope < 0)
        possible = ((slope != 0) | (wanted <= 0)).all(axis=2)
        found |= (possible & (least <= most)).any(axis=0)
    return found


# Fitting --------------------------------------------------------------------------------------------------------------


def fitted(values: Sequence[int], samples: Sequence[Mapping[str, int]], parts: Sequence[Dim], scope: DimScope) -> Dim:
    """Return the polynomial of the monomials in `parts` with these values at the samples.

    Returns the first value if there is no such polynomial.
    """
    if all(value == values[0] for value in values):
        return values[0]
    for part in parts:
        if [evaluate(part, sizes) for sizes in samples] == list(values):
            return part
    monomials: dict[Monomial, None] = {(): None}
    for part in parts:
        if isinstance(part, DimExpr):
            monomials.update(dict.fromkeys(part.polynomial))
    if len(samples) <= len(monomials):
        return values[0]
    terms = [scope.intern({monomial: 1}) if monomial else 1 for monomial in monomials]
    table = np.array([[evaluate(term, sizes) for term in terms] for sizes in samples], np.float64)
    coefficients = np.rint(np.linalg.lstsq(table, np.array(values, np.float64), rcond=None)[0])
    polynomial = {monomial: int(c) for monomial, c in zip(monomials, coefficients) if c}
    found: Dim = scope.intern(polynomial)
    return found if [evaluate(found, sizes) for sizes in samples] == list(values) else values[0]
