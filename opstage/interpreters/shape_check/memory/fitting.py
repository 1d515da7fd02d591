"""Fit a polynomial in the named dims to values at a few sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....ops.dims import Dim, DimExpr, DimScope, evaluate
from ....ops.dims.polynomial import Monomial


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
