"""Orthogonal factors, for each matrix of a stack."""

from __future__ import annotations

from ..catalogue.factorizations import EIGH
from ..primitive import NO_STATIC, R
from .calls import Calls


class FactorizationsOps(Calls[R]):
    __slots__ = ()

    def eigh(self, x: R, /) -> tuple[R, R]:
        """Eigenvalues and eigenvectors of a symmetric x: (..., n, n) -> λ (..., n), V (..., n, n), x·V = V·diag(λ).

        Values ascend; the columns of V are orthonormal, and the first entry of each that is at least 0.618 times its
        greatest in magnitude is positive. The lower triangle of x is read; its gradient is symmetric. nan where the
        triangle holds nan or inf. Where eigenvalues are equal the derivatives of V are nan or inf; those of λ alone
        are right. PyTorch: torch.linalg.eigh. Source of its derivatives: Giles 2008.
        """
        values, vectors = self._call_many(EIGH, (x,), NO_STATIC)
        return values, vectors
