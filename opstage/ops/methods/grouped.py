"""Products of rows with the matrix of their group."""

from __future__ import annotations

from ..calls import Calls
from ..catalogue.grouped import GROUPED_MATMUL, GROUPED_OUTER
from ..primitive import R


class GroupedOps(Calls[R]):
    __slots__ = ()

    def grouped_matmul(self, x: R, w: R, ends: R, /) -> R:
        """y[i] = x[i] · w[g] for the group g of row i, the first with i < ends[g]; 0 if there is none.

        x (n, k), w (groups, k, m), ends (groups) integers: the running sum of how many rows each group has, so that the
        rows of a group stand together; (n, m). Rows of other groups do not take part, whatever they hold. PyTorch:
        torch.nn.functional.grouped_mm, where rows of no group are not written. JAX: jax.lax.ragged_dot.

        Raises:
            DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
            ShapeError: x, w, ends of another shape; operands that do not fit each other.
        """
        return self._call3(GROUPED_MATMUL, x, w, ends)

    def grouped_outer(self, x: R, g: R, ends: R, /) -> R:
        """Σ x[i]ᵀ · g[i] over the rows i of each group, for x (n, k) and g (n, m); the gradient of grouped_matmul in w.

        Row i belongs to the first group with i < ends[group], ends (groups) integers; rows of none are left out.
        (groups, k, m), of zeros where a group has no rows. PyTorch: torch.nn.functional.grouped_mm of a transposed
        matrix. JAX: jax.lax.ragged_dot_general.

        Raises:
            DtypeError: x not a float tensor; ends not an integer tensor; dtypes differ.
            ShapeError: x, g, ends of another shape; operands that do not fit each other.
        """
        return self._call3(GROUPED_OUTER, x, g, ends)
