"""`Report`: the findings of a check, and the cost of the program as formulas in the named dims."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...ops.body import Body, Equation
from ...ops.dims import UNKNOWN, Dim, DimScope, MissingSizeError, Verdict, at_most, evaluate
from ...ops.errors import ShapeError, SourceLine, UsageError, nearest
from ...ops.mesh import ALONE, Mesh
from ...ops.primitive import Cost, Static
from ...ops.tied_parameters import show_tied
from ...ops.trees import map_leaves
from ...ops.types import TensorType, is_float
from ...transforms.tracer import Composite
from .finding import MASKED_ROW, ClaimVerdict, Finding
from .program import CheckedProgram

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..graph.html_page import Remark
    from .cost_table import Table
    from .traffic import Traffic


@dataclass(frozen=True)
class Assumption:
    """A relation between dims that could be neither proved nor refuted; it must hold when the program runs."""

    relation: str
    op: str
    source: SourceLine | None = None
    holds: Callable[[dict[str, int]], bool] | None = field(default=None, compare=False)
    """Whether it holds for given sizes of the named dims."""
    reason: str = ""
    """The op's error where it does not hold."""

    def __str__(self) -> str:
        return f"{self.relation}, needed by {self.op}" + (f" at {self.source}" if self.source else "")


@dataclass(frozen=True)
class DeclaredConstraint:
    """A constraint that a Spec declares; every run is held to it."""

    constraint: str
    source: SourceLine | None = None

    def __str__(self) -> str:
        return f"{self.constraint}" + (f", declared at {self.source}" if self.source else "")


@dataclass(frozen=True)
class Report:
    """The result of `opstage.check`."""

    errors: tuple[Finding, ...]
    conditions: tuple[Assumption, ...]
    """Undecided conditions, to which a run is held."""
    outputs: Any
    """The pytree of output types; None when an error hides it."""
    cost: Cost
    """Flops and bytes of everything the program does, in the named dims."""
    ops: int
    """How many primitives the program binds."""
    warnings: tuple[Finding, ...] = ()
    declarations: tuple[DeclaredConstraint, ...] = ()
    """The constraints that the Specs declare."""
    program: CheckedProgram = field(default_factory=CheckedProgram, repr=False, compare=False)
    """The program, op by op."""
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The sizes that `at` substituted for the named dims."""

    notes: tuple[Finding, ...] = ()
    """Remarks on what is right and worth knowing."""
    mesh: Mesh = ALONE
    """That of which a rank runs the program."""
    claims: tuple[ClaimVerdict, ...] = ()
    """The verdicts on claims about what the outputs read."""

    @property
    def ok(self) -> bool:
        return not self.errors

    @cached_property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """Path and type of every input tensor."""
        given = zip(self.program.names, self.program.body.input_types)
        return tuple([(path, str(type_)) for path, type_ in given if path])

    @cached_property
    def parameters(self) -> Dim:
        """Elements in the first argument's float tensors, those of one parameter at several places once."""
        count: Dim = 0
        for type_ in self.program.body.input_types[: self.program.parameters]:
            if is_float(type_.dtype):
                count = count + type_.size
        return count

    @property
    def tied(self) -> tuple[tuple[str, ...], ...]:
        """For each parameter that is at several places the paths of all of them; in `inputs` is the first."""
        return self.program.tied

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors, then warnings."""
        return (*self.errors, *self.warnings)

    @property
    def suggestions(self) -> tuple[str, ...]:
        """Constraints that would settle what is refuted or undecided, each once."""
        found = [finding.constraint for finding in self.errors] + [a.relation for a in self.conditions]
        return tuple(dict.fromkeys(constraint for constraint in found if constraint))

    @cached_property
    def table(self) -> Table:
        """The cost of each block and op: parameters, FLOPs, bytes moved, bytes saved for the backward pass."""
        from .cost_table import Table

        return Table(self.program)

    @cached_property
    def traffic(self) -> Traffic:
        """The bytes that a rank sends in one run, collective by collective: formulas in the named dims."""
        from .traffic import Traffic

        return Traffic.of(self.program)

    @property
    def graph(self) -> Graph:
        """The program as a graph, to draw and to save; its sizes are those of the report. UsageError after an error."""
        if self.errors:
            raise UsageError("a program with errors has no graph; see the report's errors")
        return self.program.graph()

    def with_verdicts(self, other: Report) -> Report:
        """This report with what another one, of the same program in another form, says of claims."""
        findings = [found for verdict in other.claims if (found := verdict.finding) is not None]
        return replace(
            self,
            claims=(*self.claims, *other.claims),
            errors=(*self.errors, *findings),
            warnings=tuple(dict.fromkeys((*self.warnings, *[w for w in other.warnings if w.rule == MASKED_ROW]))),
        )

    def at(self, **sizes: int) -> Report:
        """The same with sizes put in for the named dims: its cost, types and table are numbers.

            report.at(B=64, T=1024).table

        Every named dim needs one: UsageError for one too few or too many. ShapeError for sizes outside what is declared
        of them, and for those at which a condition that was left undecided does not hold.
        """
        names = () if self.sizes else self.program.scope.names
        if not sizes and not names:
            return self
        found = allowed_sizes(self.program.scope, self.conditions, sizes, names)
        return replace(
            self,
            conditions=tuple(condition for condition in self.conditions if condition.holds is None),
            outputs=map_leaves(lambda leaf: value_at(leaf, found), self.outputs),
            cost=Cost(value_at(self.cost.flops, found), value_at(self.cost.bytes, found)),
            program=program_at(self.program, found),
            mesh=Mesh(tuple([(axis, value_at(size, found)) for axis, size in self.mesh.axes])),
            sizes=found,
        )

    def to_json(self, *, indent: int | None = None) -> str:
        """Findings, conditions, inputs and the table as JSON: the document of one target that `opstage check --format
        json` writes, described in `shape_check.formats.document`; its section `table` in `shape_check.cost_table`."""
        from .cost_table import table_as_dict
        from .formats.document import CheckOutcome, Section, to_document

        table = Section("table", table_as_dict(self), str(self.table))
        return json.dumps(
            to_document(CheckOutcome.of(self, "program", sections=[table])), indent=indent, ensure_ascii=False
        )

    def to_html(self, title: str = "program") -> str:
        """The page of the graph, with what the check has found beside the ops that it is about.

        UsageError after an error, as for `graph`.
        """
        from ..graph.html_page import to_html

        return to_html(self.graph, title, self.remarks)

    @property
    def remarks(self) -> list[Remark]:
        """Findings, notes and undecided conditions as a page of the graph shows them."""
        from ..graph.html_page import Remark

        found = [Remark(f.severity, str(f), f.op, f.source) for f in (*self.findings, *self.notes)]
        return found + [Remark("note", f"right only if {each}", each.op, each.source) for each in self.conditions]

    def _repr_html_(self) -> str:
        from .cost_table import table_html

        return table_html(self.table, self)

    def strict(self) -> Report:
        """The same, each undecided condition an error."""
        undecided = tuple(
            Finding(
                a.op, f"{a.reason or a.relation}: undecided", source=a.source, rule="undecided", constraint=a.relation
            )
            for a in self.conditions
        )
        return replace(self, errors=(*self.errors, *undecided), conditions=())

    def __str__(self) -> str:
        lines: list[str] = []
        for finding in (*self.findings, *self.notes):
            lines += [f"{finding.severity}: {finding}", ""]
        if self.conditions:
            lines.append("This program is right only if:")
            lines += [f"  {assumption}" for assumption in self.conditions]
        if self.declarations:
            lines.append("Given:")
            lines += [f"  {declaration}" for declaration in self.declarations]
        proved = [verdict for verdict in self.claims if verdict.state == "proved"]
        if proved:
            lines.append("Proved:")
            lines += [f"  {verdict}" for verdict in proved]
        if self.tied:
            lines.append("Tied, each one parameter:")
            lines += [f"  {show_tied(paths)}" for paths in self.tied]
        if self.ok:
            flops, moved = _large(self.cost.flops), _large(self.cost.bytes)
            count = f", {count_of(len(self.warnings), 'warning')}" if self.warnings else ""
            lines.append(f"ok: {self.ops} ops, {flops} flops, {moved} bytes moved{count}")
        else:
            count = f" and {count_of(len(self.warnings), 'warning')}" if self.warnings else ""
            lines.append(count_of(len(self.errors), "error") + count)
        return "\n".join(lines)


def count_of(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _large(value: Dim) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


# Sizes ----------------------------------------------------------------------------------------------------------------


def allowed_sizes(
    scope: DimScope, conditions: Sequence[Assumption], sizes: Mapping[str, Any], names: Sequence[str]
) -> dict[str, int]:
    """Return the sizes, one for each of `names`, as ints. Raises UsageError for a missing or unknown name, ShapeError
    if they violate a declared fact or an undecided condition."""
    for name in sizes:
        if name not in names:
            known = f"the dims are: {', '.join(names)}" if names else "the program has no named dims"
            raise UsageError(f"unknown dim {name!r}{nearest(name, names)}; {known}")
    missing = [name for name in names if name not in sizes]
    if missing:
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        wanted = ", ".join(f"{name}=…" for name in missing)
        raise UsageError(f"no size was given for {' and '.join(missing)}: add {wanted}{given and f' to {given}'}")
    found = {name: _as_size(name, sizes[name]) for name in names}
    for name, size in found.items():
        if size < 0:
            raise ShapeError(f"{name} is {size}, but a dim is never negative")
    require_allowed(scope, conditions, found, "given")
    return found


def require_allowed(scope: DimScope, conditions: Sequence[Assumption], sizes: Mapping[str, int], source: str) -> None:
    """Raise ShapeError for sizes, those of `source`, that violate a declared fact or an undecided condition."""
    at = ", ".join(f"{name}={size}" for name, size in sizes.items())
    for name, size in sizes.items():
        if size == 0 and at_most(1, scope.dim(name)) is Verdict.proved:
            raise ShapeError(f'{name} is 0, but a dim is at least 1; declare where=["{name} >= 0"]')
    for fact in scope.facts:
        if _holds(fact.holds, sizes) is False:
            raise ShapeError(f"{fact}, which was declared, does not hold at {at}")
    for condition in conditions:
        holds = condition.holds is None or _holds(condition.holds, sizes)
        if holds is None:
            reason = f"is not determined by the sizes of the {source}"
            raise ShapeError(f"{condition} {reason}: let each dim stand alone on an axis of some Spec")
        if not holds:
            raise ShapeError(f"{condition} does not hold at {at}")


def _holds(holds: Callable[[dict[str, int]], bool], sizes: Mapping[str, int]) -> bool | None:
    """Return None if a name has no size."""
    try:
        return holds(dict(sizes))
    except MissingSizeError:
        return None


def _as_size(name: str, size: Any) -> int:
    try:
        if not isinstance(size, bool):
            return operator.index(size)
    except TypeError:
        pass
    raise UsageError(f"{name} is {size!r} of type {type(size).__name__}, but a size is an int")


def program_at(program: CheckedProgram, sizes: Mapping[str, int]) -> CheckedProgram:
    """Return the same program on tensors with numeric sizes."""
    return replace(program, body=_Put(sizes).body(program.body))


def value_at(tree: Any, sizes: Mapping[str, int]) -> Any:
    """Return a dim, a type or a tuple of them with sizes substituted; unknown dims stay unknown."""
    return _Put(sizes).value(tree)


class _Put:
    """Substitutes sizes; repeated values are evaluated once."""

    def __init__(self, sizes: Mapping[str, int]):
        self._sizes = sizes
        self._types: dict[TensorType, TensorType] = {}
        self._bodies: dict[Body, Body] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, int):
            return value
        if isinstance(value, TensorType):
            return self.type(value)
        if isinstance(value, Body):
            return self.body(value)
        if type(value) is tuple:
            return tuple([self.value(element) for element in value])
        return UNKNOWN if value is UNKNOWN else evaluate(value, self._sizes)

    def type(self, type_: TensorType) -> TensorType:
        found = self._types.get(type_)
        if found is None:
            found = self._types[type_] = TensorType(self.value(type_.shape), type_.dtype)
        return found

    def body(self, body: Body) -> Body:
        found = self._bodies.get(body)
        if found is None:
            found = self._bodies[body] = body.replace(
                equations=[self.equation(e) for e in body.equations], types=[self.type(type_) for type_ in body.types]
            )
        return found

    def equation(self, e: Equation) -> Equation:
        if type(e.primitive) is Composite:
            return e._replace(primitive=e.primitive.over(self.body(e.primitive.body)))
        return e._replace(static=self.static(e.static)) if e.static else e

    def static(self, static: Static) -> Static:
        return {name: self.value(value) for name, value in static.items()}
