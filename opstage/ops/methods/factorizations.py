"""Orthogonal factors, for each matrix of a stack."""

from __future__ import annotations

from ..catalogue.factorizations import EIGH, QR
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

    def qr(self, x: R, /) -> tuple[R, R]:
        """x = Q·R, k = min(m, n): (..., m, n) -> Q (..., m, k) of orthonormal columns, R (..., k, n) upper triangular.

        The diagonal of R is not negative, so that Q and R are one and the same on every device. nan where x holds nan
        or inf. Where the first k columns of x are dependent, so that the diagonal has a 0, the derivatives are nan or
        inf. PyTorch: torch.linalg.qr. Source of its derivatives: Walter and Lehmann 2010.
        """
        q, r = self._call_many(QR, (x,), NO_STATIC)
        return q, r
