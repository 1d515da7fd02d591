"""Eigenvalue, QR and singular value decompositions, for each matrix of a stack."""

from __future__ import annotations

from ..calls import Calls
from ..catalogue.factorizations import EIGH, QR, SVD
from ..primitive import NO_STATIC, R


class FactorizationsOps(Calls[R]):
    __slots__ = ()

    def eigh(self, x: R, /) -> tuple[R, R]:
        """Eigenvalues and eigenvectors of a symmetric x: (..., n, n) -> λ (..., n), V (..., n, n), x·V = V·diag(λ).

        Values ascend; the columns of V are orthonormal, and the first entry of each that is at least 0.618 times its
        largest in magnitude is positive. The lower triangle of x is read; its gradient is symmetric. nan where the
        triangle has nan or inf. Where eigenvalues are equal, the derivatives of V are nan or inf; those of λ alone
        are correct. PyTorch: torch.linalg.eigh. Source of its derivatives: Giles 2008.

        Raises:
            DtypeError: x not a float tensor; x a mask.
            ShapeError: shapes differ; no such axis; x of another shape.
        """
        values, vectors = self._call_many(EIGH, (x,), NO_STATIC)
        return values, vectors

    def qr(self, x: R, /) -> tuple[R, R]:
        """x = Q·R, k = min(m, n): (..., m, n) -> Q (..., m, k), orthonormal columns, R (..., k, n) upper triangular.

        The diagonal of R is nonnegative, so that Q and R are the same on every device. nan where x has nan
        or inf. Where the first k columns of x are dependent, so that the diagonal has a 0, the derivatives are nan or
        inf. PyTorch: torch.linalg.qr. Source of its derivatives: Walter and Lehmann 2010.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """
        q, r = self._call_many(QR, (x,), NO_STATIC)
        return q, r

    def svd(self, x: R, /) -> tuple[R, R, R]:
        """x = U·diag(S)·Vᵀ, k = min(m, n): (..., m, n) -> U (..., m, k), S (..., k), Vᵀ (..., k, n).

        Singular values descend; the columns of U and V are orthonormal, and the first entry of each column of U that is
        at least 0.618 times its largest in magnitude is positive; the vectors of a zero singular value have any
        sign. nan where x has nan or inf. Where singular values are equal, or one is 0 and x is not square, the
        derivatives of U and V are nan or inf; those of S alone are finite. Source of its derivatives: Townsend 2016.
        PyTorch: torch.linalg.svd(x, full_matrices=False).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """
        u, s, vh = self._call_many(SVD, (x,), NO_STATIC)
        return u, s, vh
