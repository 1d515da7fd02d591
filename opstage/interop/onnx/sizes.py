"""Symbolic sizes and numbers as nodes, computed from the sizes of the model's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...ops.dims import Dim, DimExpr, DimFloat
from ...ops.dims import polynomial as poly
from ...ops.dims import radicals as algebra
from ...ops.errors import UnsupportedError
from ...ops.types import FLOAT64, INT64, DType

if TYPE_CHECKING:
    from .writer import OnnxValue, OnnxWriter


class SizeExpressions:
    """Named sizes and expressions of them. All are computed outside of loops, each expression once.

    A size is an int64 vector of one element, as Shape returns it and Concat accepts it.
    """

    __slots__ = ("writer", "_axes", "_known")

    def __init__(self, writer: OnnxWriter):
        self.writer = writer
        self._axes: list[tuple[DimExpr, str, int]] = []
        self._known: dict[Any, str] = {}

    def learn(self, value: OnnxValue) -> None:
        """Register an input, whose axes may provide sizes."""
        for axis, d in enumerate(value.shape):
            if isinstance(d, DimExpr):
                self._axes.append((d, value.name, axis))

    def vector(self, dims: Sequence[Dim]) -> str:
        """Return sizes as one int64 vector."""
        parts: list[str] = []
        run: list[int] = []
        for d in dims:
            if isinstance(d, DimExpr):
                if run:
                    parts.append(self.writer.ints(*run))
                    run = []
                parts.append(self.size(d))
            else:
                run.append(d)
        if run or not parts:
            parts.append(self.writer.ints(*run))
        return parts[0] if len(parts) == 1 else self._node("Concat", *parts, axis=0)

    def size(self, d: Dim) -> str:
        """Return a size as an int64 vector of one element."""
        return self._polynomial(d.polynomial) if isinstance(d, DimExpr) else self.writer.ints(d)

    def scalar(self, value: DimExpr | DimFloat, dtype: DType) -> str:
        """Return an expression in sizes as a scalar of `dtype`, computed in float64 and rounded once."""
        key = (str(value), dtype)
        if key not in self._known:
            if isinstance(value, DimExpr):
                vector = self.size(value)
                cast = dtype != INT64
            else:
                vector = self._terms(value.terms)
                cast = dtype != FLOAT64
            if cast:
                vector = self._node("Cast", vector, to=dtype)
            self._known[key] = self._node("Squeeze", vector, self.writer.ints(0))
        return self._known[key]

    # Integers -------------------------------------------------------------------------------------------------------

    def _polynomial(self, p: poly.Polynomial) -> str:
        text = poly.render(p)
        if text not in self._known:
            self._known[text] = self._read_off(p) or self._sum(p)
        return self._known[text]

    def _read_off(self, p: poly.Polynomial) -> str | None:
        """Return the size of an input's axis that equals this expression, or None."""
        for d, name, axis in self._axes:
            if d.polynomial == p:
                return self._node("Shape", name, start=axis, end=axis + 1)
        return None

    def _sum(self, p: poly.Polynomial) -> str:
        total: str | None = None
        for monomial, coefficient in p.items():
            term: str | None = None
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term is None else self._node("Mul", term, factor)
            if term is None:
                term = self.writer.ints(coefficient)
            elif coefficient != 1:
                term = self._node("Mul", term, self.writer.ints(coefficient))
            total = term if total is None else self._node("Add", total, term)
        return total if total is not None else self.writer.ints(0)

    def _atom(self, atom: poly.Atom) -> str:
        if atom.text not in self._known:
            if isinstance(atom, poly.NamedDim):
                self._known[atom.text] = self._name(atom)
            elif isinstance(atom, poly.Quotient):
                self._known[atom.text] = self._quotient(atom)
            else:
                self._known[atom.text] = self._node("Min", *map(self._polynomial, atom.arguments))
        return self._known[atom.text]

    def _quotient(self, quotient: poly.Quotient) -> str:
        """⌊a/b⌋ = (a - a mod b)/b: ONNX's Div truncates where its Mod has the sign of the divisor."""
        a, b = self._polynomial(quotient.numerator), self._polynomial(quotient.denominator)
        return self._node("Div", self._node("Sub", a, self._node("Mod", a, b)), b)

    def _name(self, name: poly.NamedDim) -> str:
        """Return N from an axis of size N, else from one of size a·N + b."""
        found = self._read_off(poly.variable(name))
        if found is not None:
            return found
        for d, value, axis in self._axes:
            slope, rest = d.polynomial.get((name,), 0), d.polynomial.get((), 0)
            if slope and d.polynomial.keys() <= {(name,), ()}:
                size = self._node("Shape", value, start=axis, end=axis + 1)
                if rest:
                    size = self._node("Sub", size, self.writer.ints(rest))
                return self._node("Div", size, self.writer.ints(slope)) if slope != 1 else size
        raise UnsupportedError(
            f"the size {name.text} cannot be computed in the model: no axis of an input has it; give the program an "
            f"input with an axis of {name.text}, or record it with a number in its place"
        )

    # Reals ----------------------------------------------------------------------------------------------------------

    def _terms(self, terms: algebra.Terms) -> str:
        """Return Σ coefficient · Π base^(exponent/2), as a vector of one float64."""
        total: str | None = None
        for factors, coefficient in terms.items():
            term = self._float(coefficient)
            for base, twice in factors:
                root = self._base(base) if twice % 2 == 0 else self._node("Sqrt", self._base(base))
                times = abs(twice) // 2 if twice % 2 == 0 else abs(twice)
                for _ in range(times):
                    term = self._node("Mul" if twice > 0 else "Div", term, root)
            total = term if total is None else self._node("Add", total, term)
        return total if total is not None else self._float(Fraction(0))

    def _base(self, base: algebra.Base) -> str:
        if isinstance(base, int):
            return self._float(Fraction(base))
        if isinstance(base, algebra.Opaque):
            return self._terms(base.terms)
        size = self._polynomial(base.polynomial) if isinstance(base, DimExpr) else self._atom(base)
        return self._node("Cast", size, to=FLOAT64)

    def _float(self, value: Fraction) -> str:
        return self.writer.constant([float(value)], FLOAT64)

    def _node(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.writer.node(op, *inputs, at_root=True, **attributes)
