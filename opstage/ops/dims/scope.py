"""`DimScope`: a set of named dims, with declared facts and undecided conditions, and the notation of both in text."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import NoReturn

from ..errors import ShapeError, UndecidedDimError, UsageError, brief, nearest, syntax_depth, user_frame
from . import polynomial as poly
from .arithmetic import DimFloat, written_extremum
from .expression import Dim, DimExpr, division_by_zero
from .facts import Claim, Contradiction, Facts, Key
from .polynomial import MOST_BITS
from .proof import Prover, find_witness
from .radicals import Factors, Terms, cancelled
from .relation import Condition, Message, Verdict, build_claim, constraint_text, values_text
from .simplification import floor_divide

# Notation: `B*T + 1`, `N//3`, `min(T, 8)`, and constraints such as `1 <= B <= 64` -------------------------------------

_RELATIONS: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">"}
LARGEST_SIZE = 2**63 - 1
"""The longest axis of any array."""

_MOST_CHARACTERS = 2000
_MOST_TERMS = 512
_MOST_DIGITS = 100
_LONGEST_REASON = 300
_LARGEST_POWER = 16
_DEEPEST = 50  # nesting of parentheses, calls and signs
_NUMBER = re.compile(r"(?<![\w.])\d\w*")
_FOREIGN = re.compile(r"[^\w\s+\-*/%(),<=>!.]")


def parse_expression(text: str, name: Callable[[str], Dim]) -> Dim:
    """Return the dim that `text` denotes; `name` returns the dim of a name. Raises `UsageError`."""
    reader = _DimReader(text, "dim expression", name)
    tree = reader.tree()
    if isinstance(tree, ast.Compare):
        reader.fail("a size is wanted here, not a comparison")
    size = reader.read(tree)
    if isinstance(size, int) and abs(size) > LARGEST_SIZE:
        reader.fail(f"the size is {brief(size)}, and the largest is {LARGEST_SIZE}")
    return size


def parse_relations(text: str, name: Callable[[str], Dim]) -> list[tuple[Dim, str, Dim]]:
    """Return the relations (left, operator, right) of a constraint; `1 <= B <= 64` has two. Raises `UsageError`."""
    reader = _DimReader(text, "constraint", name)
    tree = reader.tree()
    if not isinstance(tree, ast.Compare):
        reader.fail("a relation is wanted, such as 'T <= 1024', 'D == H*K' or 'N % 3 == 0'")
    sides = [reader.read(side) for side in (tree.left, *tree.comparators)]
    operators = []
    for relation in tree.ops:
        if type(relation) not in _RELATIONS:
            reader.fail("only ==, <=, <, >= and > are understood between sizes")
        operators.append(_RELATIONS[type(relation)])
    return list(zip(sides, operators, sides[1:], strict=False))


def split_outside(text: str, separators: str) -> list[str]:
    """Split a text at separators outside parentheses: `B min(T, 8)` has two parts, split at blanks."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character in separators and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [stripped for part in parts if (stripped := part.strip())]


_COMBINED = "only + - * // % combine sizes, and ** with a number on its right"
_ALLOWED = "write names, integers, + - * // %, min, max, parentheses"


class _DimReader:
    """Evaluates the syntax tree of one text."""

    def __init__(self, text: str, kind: str, name: Callable[[str], Dim]):
        self.text = text
        self.kind = kind
        self.name = name

    def fail(self, reason: str) -> NoReturn:
        raise UsageError(f"cannot read the {self.kind} {brief(self.text)}: {reason}")

    def tree(self) -> ast.expr:
        if len(self.text) > _MOST_CHARACTERS:
            self.fail(f"it is longer than {_MOST_CHARACTERS} characters")
        for number in _NUMBER.findall(self.text):
            if not number.isdecimal():
                self.fail(f"{brief(number)} is neither a number nor a name")
            if len(number) > _MOST_DIGITS:
                self.fail(f"a number in it has {len(number):,} digits, and at most {_MOST_DIGITS} are read")
        if _FOREIGN.search(self.text):
            self.fail(_ALLOWED)
        try:
            tree = ast.parse(" ".join(self.text.split()), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.fail(_ALLOWED)
        if syntax_depth(tree) > _DEEPEST:
            self.fail(f"it is nested deeper than {_DEEPEST} levels")
        return tree

    def read(self, node: ast.expr) -> Dim:
        try:
            return self._read(node)
        except ShapeError as error:
            self.fail(error.reason if len(error.reason) <= _LONGEST_REASON else f"{error.reason[:_LONGEST_REASON]}...")

    def _read(self, node: ast.expr) -> Dim:
        """Return the dim of a node. A sum of many terms is one level: its syntax tree is as deep as it is long."""
        following = []
        while isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Pow):
            following.append((node.op, node.right))
            node = node.left
        result = self._operand(node)
        for operation, right in reversed(following):
            result = self.modest(self.combine(result, operation, self._read(right)))
        return result

    def modest(self, size: Dim) -> Dim:
        """Check the size of a combined number, since numbers only grow here; `polynomial` limits expressions."""
        if isinstance(size, DimExpr):
            if len(size.polynomial) > _MOST_TERMS:
                self.fail(f"it has more than {_MOST_TERMS} terms when it is multiplied out")
        elif size.bit_length() > MOST_BITS:
            self.fail("a number in it has hundreds of digits when it is worked out")
        return size

    def _operand(self, node: ast.expr) -> Dim:
        match node:
            case ast.Name(id=name):
                return self.name(name)
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._read(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._read(operand)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)):
                if not 0 <= exponent <= _LARGEST_POWER:
                    self.fail(f"an exponent is an integer from 0 to {_LARGEST_POWER}")
                power: Dim = self._read(left) ** exponent
                return self.modest(power)
            case ast.BinOp(op=ast.Pow()):
                self.fail(_COMBINED)
            case ast.Call(func=ast.Name(id=("min" | "max") as function), args=[_, *_] as arguments, keywords=[]):
                least = written_extremum([self._read(argument) for argument in arguments], function == "max")
                return self.modest(least)
            case _:
                part = ast.get_source_segment(" ".join(self.text.split()), node) or self.text
                self.fail(f"{brief(part)} is neither a name, an integer, min, max nor one of + - * // %")

    def combine(self, left: Dim, operation: ast.operator, right: Dim) -> Dim:
        match operation:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                self.fail("sizes divide with // (rounding down), not with /")
            case ast.FloorDiv() | ast.Mod():
                if isinstance(right, int) and right == 0:
                    self.fail("it divides by 0")
                return left // right if isinstance(operation, ast.FloorDiv) else left % right
            case _:
                self.fail(_COMBINED)


_FIRST_POINTS = 40


class DimScope:
    """A set of named dims and the facts declared about them. A named dim is at least 1 unless declared otherwise.

        scope = DimScope()
        B, T = scope.dim("B"), scope.dim("T")
        scope.declare("T <= 1024")
        equal(2*B + B, 3*B)          # Verdict.proved
        equal(B, T)                  # Verdict.refuted: witness(B, "==", T) is {"B": 2, "T": 3}

    facts: the declared facts, in order.
    conditions: required relations that are undecided, in order, without those that earlier ones imply.
    """

    def __init__(self) -> None:
        self.atoms = poly.AtomTable()
        self.facts: list[Condition] = []
        self.conditions: list[Condition] = []
        self._dims: dict[str, Dim] = {}
        self._expressions: dict[frozenset[tuple[poly.Monomial, int]], DimExpr] = {}
        self._reals: dict[frozenset[tuple[Factors, Fraction]], DimFloat] = {}
        self._prover = Prover(Facts(self.atoms))
        self._assumed: Prover | None = None  # for facts and conditions; created on first use
        self._verdicts: dict[Key, tuple[Verdict, dict[str, int] | None]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return the named dims, in order of creation."""
        return tuple(self._dims)

    def dim(self, name: str) -> DimExpr:
        """Return the dim of a name, created on first use. Raises `UsageError` if the name is not an identifier."""
        found = self._dims.get(name)
        if found is None:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise UsageError(f"{name!r} cannot name a dim; a name is letters, digits and _, such as B or seq_len")
            found = self._dims[name] = self.intern(poly.variable(self.atoms.name(name)))
        assert isinstance(found, DimExpr)
        return found

    def parse(self, text: str) -> Dim:
        """Parse a dim such as `B*T + 1` or `min(T, 8)`, creating new names. Raises `UsageError`."""
        return parse_expression(text, self.dim)

    def declare(self, constraint: str) -> None:
        """Declare a fact: `T <= 1024`, `1 <= B < 64`, `D == H*K`, `N % 3 == 0`.

        A declared lower end replaces the default 1; sizes are never negative. Raises `UsageError` for text that is not
        a constraint, for an unknown name, and for a fact that contradicts earlier ones.
        """
        added = [claim for claim in self._claims(constraint) if poly.constant_value(claim.polynomial) is None]
        if not added:
            raise UsageError(f"the constraint {constraint!r} always holds; remove it")
        try:
            prover = self._declaring(added)
        except Contradiction:
            earlier = ", ".join(str(fact) for fact in self.facts) or "nothing else"
            raise UsageError(
                f"the constraint {constraint!r} cannot be satisfied (declared before: {earlier}; "
                "a dim is at least 1 unless a constraint gives it another lower end)"
            ) from None
        source = user_frame()
        self.facts = self.facts + [
            Condition(constraint_text(self, claim, True), claim, f"declared: {constraint}", source) for claim in added
        ]
        self._prover, self._assumed = prover, None
        self._verdicts.clear()

    def _claims(self, constraint: str) -> list[Claim]:
        claims = [
            build_claim(self._polynomial(left), operator, self._polynomial(right))
            for left, operator, right in parse_relations(constraint, self._known)
        ]
        for claim in claims:
            if poly.constant_value(claim.polynomial) is not None and not self._prover.always(claim):
                raise UsageError(f"the constraint {constraint!r} never holds")
        return claims

    def _declaring(self, claims: list[Claim]) -> Prover:
        return Prover(Facts(self.atoms, [*(fact.claim for fact in self.facts), *claims]))

    # ------------------------------------------------------------------ construction of dims

    def intern(self, p: poly.Polynomial) -> Dim:
        """Return the interned object for a polynomial: an int if it is constant."""
        value = poly.constant_value(p)
        if value is not None:
            return value
        key = frozenset(p.items())
        found = self._expressions.get(key)
        if found is None:
            found = self._expressions[key] = DimExpr(self, poly.require_modest(p))
        return found

    def intern_real(self, terms: Terms) -> Fraction | DimFloat:
        """Return the interned object for an exact real: a Fraction if it is constant."""
        terms = cancelled(terms)
        if not terms or terms.keys() == {()}:
            return terms.get((), Fraction(0))
        key = frozenset(terms.items())
        found = self._reals.get(key)
        if found is None:
            found = self._reals[key] = DimFloat(self, terms)
        return found

    def floor_divide(self, numerator: poly.Polynomial, denominator: poly.Polynomial) -> poly.Polynomial:
        """Return `numerator // denominator`, requiring a symbolic denominator to be at least 1."""
        divisor = poly.constant_value(denominator)
        if divisor == 0:
            raise division_by_zero(poly.render(numerator))
        if divisor is None:
            self.require(
                build_claim(poly.constant(1), "<=", denominator),
                lambda: f"{poly.render(numerator)} is divided by {poly.render(denominator)}, which must be at least 1",
            )
        return floor_divide(self.atoms, numerator, denominator)

    # ------------------------------------------------------------------ decisions about claims

    def verdict(self, claim: Claim) -> Verdict:
        """Return the verdict: proved for every allowed value, refuted by one, or undecided."""
        return self._decided(claim)[0]

    def witness(self, claim: Claim, wanted: bool = False) -> dict[str, int] | None:
        """Return allowed values at which the claim fails (or holds, if `wanted`), or None if none are found."""
        return find_witness(self._prover.facts, claim, True) if wanted else self._decided(claim)[1]

    def _decided(self, claim: Claim) -> tuple[Verdict, dict[str, int] | None]:
        found = self._verdicts.get(claim.key)
        if found is None:
            facts, broken_at = self._prover.facts, None
            # Few proofs are hard and most counterexamples are small, so the hard proof comes between two searches.
            if not self._prover.at_once(claim):
                broken_at = find_witness(facts, claim, False, _FIRST_POINTS)
                if broken_at is None and not self._prover.always(claim):
                    broken_at = find_witness(facts, claim, False)
            if broken_at is not None:
                found = Verdict.refuted, broken_at
            else:
                found = Verdict.proved if self.is_proved(claim) else Verdict.undecided, None
            self._verdicts[claim.key] = found
        return found

    def is_proved(self, claim: Claim) -> bool:
        """Return whether the claim is proved to hold for every allowed value."""
        return self._prover.at_once(claim) or self._prover.always(claim)

    def find_constraint(self, claim: Claim) -> str | None:
        """Return a constraint that implies the claim if declared, and that some allowed values satisfy; else None."""
        text, prover = self._proving(claim)
        return text if prover is not None and find_witness(prover.facts, claim, True) is not None else None

    def _proving(self, claim: Claim) -> tuple[str, Prover | None]:
        """Return the shortest text that implies the claim if declared, with the resulting prover; else the plain
        text."""
        text = ""
        for plain in (False, True):
            text = constraint_text(self, claim, plain)
            try:
                prover = self._declaring(self._claims(text))
            except (Contradiction, UsageError):
                continue
            if prover.always(claim):
                return text, prover
        return text, None

    def require(self, claim: Claim, message: Message) -> None:
        """Raise `ShapeError` if the claim is refuted; record it as a condition if it is undecided.

        The error's `constraint` is a declaration that would imply the claim, if there is one.
        """
        verdict, broken_at = self._decided(claim)
        if verdict is Verdict.proved or (verdict is Verdict.undecided and self._is_assumed(claim)):
            return
        text = (message if isinstance(message, str) else message()).rstrip(".")
        if verdict is Verdict.undecided:
            self.conditions.append(Condition(self._proving(claim)[0], claim, text, user_frame()))
            self._assumed = None
            return
        values = values_text(broken_at or {}, claim)
        if self._prover.never(claim):
            raise ShapeError(f"{text}; fails at every allowed size{values and f', for instance {values}'}")
        constraint = self.find_constraint(claim)
        error = ShapeError(f"{text}; fails at {values}" + (f'; add where=["{constraint}"]' if constraint else ""))
        error.constraint = constraint
        raise error

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Return a block in which undecided relations do not become conditions."""
        kept, assumed = len(self.conditions), self._assumed
        try:
            yield
        finally:
            del self.conditions[kept:]
            self._assumed = assumed

    def _is_assumed(self, claim: Claim) -> bool:
        """Return whether an undecided claim follows from the conditions so far."""
        if not self.conditions:
            return False
        if self._assumed is None:
            try:
                facts = self._prover.facts.assuming(condition.claim for condition in self.conditions)
            except Contradiction:
                facts = self._prover.facts  # the conditions are contradictory, but each one must still be reported
            self._assumed = Prover(facts)
        relation = constraint_text(self, claim)
        return any(condition.relation == relation for condition in self.conditions) or self._assumed.always(claim)

    def truth(self, left: DimExpr, operator: str, right: Dim) -> bool:
        """Return the truth value of a comparison if it is the same for every allowed value; else raise
        `UndecidedDimError`."""
        negated = operator == "!="
        claim = build_claim(left.polynomial, "==" if negated else operator, self._polynomial(right))
        if self._prover.always(claim):
            return not negated
        if self._prover.never(claim):
            return negated
        raise UndecidedDimError(self._undecided_text(left, operator, right, claim, negated))

    def is_positive(self, atom: poly.Atom) -> bool:
        """Return whether the atom is proved to be at least 1."""
        return self.is_proved(build_claim(poly.constant(1), "<=", poly.variable(atom)))

    def _undecided_text(self, left: DimExpr, operator: str, right: Dim, claim: Claim, negated: bool) -> str:
        examples = []
        for wanted, verb in ((True, "holds"), (False, "fails")):
            values = self.witness(claim, wanted is not negated)
            if values is not None:
                examples.append(f"{verb} at {values_text(values, claim)}")
        relation = f"{left} {operator} {right}"
        ordered = operator not in ("==", "!=")
        hint = "; the smaller of two sizes is dims.minimum, the greater dims.maximum" if ordered else ""
        seen = f"it {' and '.join(examples)}" if examples else "a search found values for neither"
        return (
            f"whether {relation} is not decided by what is declared: {seen}. "
            f'Decide it with where=["{left} {"==" if negated else operator} {right}"] or its opposite, '
            f"or write the program so that it does not depend on it{hint}"
        )

    def _polynomial(self, value: Dim) -> poly.Polynomial:
        return value.polynomial if isinstance(value, DimExpr) else poly.constant(value)

    def _known(self, name: str) -> Dim:
        if name not in self._dims:
            known = ", ".join(self._dims) or "none yet"
            raise UsageError(f"unknown dim {name!r}{nearest(name, self._dims)}; the dims are: {known}")
        return self._dims[name]
