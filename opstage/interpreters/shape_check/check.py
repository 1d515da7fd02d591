"""Run a program on the shape checker, turning everything it does into a report and never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...compiler.captures import Capture
from ...distributed.replication_check import Fault, agreement, require_replicated
from ...ops.dims import UNKNOWN, DimScope, UnknownDimError
from ...ops.errors import (
    LocatedError,
    OpstageError,
    Place,
    ProgramError,
    SourceLine,
    UsageError,
    is_library,
    is_user_file,
    nearest,
)
from ...ops.mesh import ALONE, Mesh
from ...ops.primitive import Cost
from ...ops.spec import Spec
from ...ops.trees import Structure, flatten, output_names, unflatten
from ...options import Options
from ..registry import make_interpreter
from . import dataflow_lints as dataflow
from .finding import Finding
from .interpreter import ShapeOps, rule_of
from .lint_subject import StepRoles
from .program import CheckedProgram
from .report import DeclaredConstraint, Report
from .rules import CAPTURED, MESH, lint

_FRESH = "its_size_"
_UNKNOWN_SIZE = re.compile(rf"(?<![\w'\"]){re.escape(str(UNKNOWN))}")


def check_base_program(
    program: Callable[..., Any],
    specs: Sequence[Spec],
    names: Sequence[str],
    options: Options,
    *,
    parameters: int = 0,
    tied: tuple[tuple[str, ...], ...] = (),
    step: StepRoles | None = None,
    naming: Callable[[Structure], list[str]] = output_names,
    written: Any = None,
    mesh: Mesh = ALONE,
    kept: Mapping[str, str] | None = None,
) -> Report:
    """Check `program(ops, *refs)`, written against a base interpreter, for tensors of `specs` called `names`.

    The first `parameters` tensors are counted as the model's parameters; `tied` are the paths of each that is at
    several places; `step` says which are trained; `naming` gives the names of what it returns; `written` is the user's
    own function, used to locate arguments. The program runs on a rank of `mesh`; `kept` has, by name, the axis over
    which sharded tensors differ.
    """
    try:
        runs_on = make_interpreter(options)
    except UsageError as error:
        return unusable("Options", error)
    ops = ShapeOps(options, collect=True, runs_on=runs_on, mesh=mesh)
    try:
        refs = ops.declare(specs, names)
    except OpstageError as error:
        return unusable("Spec", error, ops.scope)
    ops.tied = tied
    errors: list[Finding] = []
    adopted: list[Any] = []
    returned: Structure | None = None
    outputs: Any = None
    try:
        result, structure = flatten(ops.follow(program, refs))
        adopted, returned = [ops.adopt(ref) for ref in result], structure
        if not any(ref.slot in ops.doubtful for ref in adopted):
            outputs = unflatten(structure, [ref.type for ref in adopted])
    except Exception as error:
        if not (ops.findings and _may_follow(error)):
            errors.append(_uncaught(error, ops))
    traced = replace(
        ops.program(adopted, parameters, lambda: [] if returned is None else naming(returned)),
        ranges={name: spec.range for name, spec in zip(names, specs) if spec.range is not None},
        initial={name: spec.initial for name, spec in zip(names, specs) if spec.initial is not None},
        lasting={name: spec.lasting for name, spec in zip(names, specs) if spec.lasting is not None},
    )
    if not (mesh.is_alone or ops.findings or errors):
        try:
            own = kept or {}
            inputs = {i: own[name] for i, name in enumerate(names) if name in own}
            require_replicated(agreement(traced.body, inputs), traced.output_names(), own)
        except Fault as fault:
            place = ops.places.get(fault.ordinal)
            errors.append(Finding("mesh", fault.reason, source=place and place.source, rule=MESH))
    odd = lint(traced, step, sound=not (ops.findings or errors), written=written)
    idle = [finding.op for finding in odd if finding.rule == dataflow.INPUT]
    sized = _give_their_sizes(program, specs, names, options, idle, mesh)
    odd = [finding for finding in odd if finding.rule != dataflow.INPUT or finding.op not in sized]
    return Report(
        errors=(*ops.findings, *errors, *[finding for finding in odd if finding.severity == "error"]),
        conditions=tuple(ops.assumptions),
        outputs=outputs,
        cost=ops.cost,
        ops=ops.bound_ops,
        declarations=_declarations(specs),
        warnings=tuple([finding for finding in odd if finding.severity == "warning"]),
        notes=tuple(dict.fromkeys(ops.notes)),
        program=traced,
        mesh=ops.mesh,
    )


def _give_their_sizes(
    program: Callable[..., Any],
    specs: Sequence[Spec],
    names: Sequence[str],
    options: Options,
    idle: Sequence[str],
    mesh: Mesh,
) -> set[str]:
    """Return which `idle` inputs, whose elements are unused, are needed for their sizes: runs the program again with
    unique sizes for these inputs and looks for these in the result."""
    places = {name: at for at, name in enumerate(names)}
    fresh = {name: f"{_FRESH}{i}_" for i, name in enumerate(idle) if specs[places[name]].entries}
    if not fresh:
        return set()
    ops = ShapeOps(options, collect=True, mesh=mesh)
    try:
        refs = ops.declare(specs, names)
        for name, prefix in fresh.items():
            at = places[name]
            sizes = tuple([f"{prefix}{axis}" for axis in range(len(specs[at].entries))])
            (refs[at],) = ops.declare([Spec(sizes, specs[at].dtype)], [name])
        outputs = [ops.adopt(ref) for ref in flatten(ops.follow(program, refs))[0]]
    except Exception:  # such as a loop with that many iterations
        if len(fresh) == 1:
            return set(fresh)
        each = [_give_their_sizes(program, specs, names, options, [name], mesh) for name in fresh]
        return set().union(*each)
    live = {ref.slot for ref in outputs}
    seen: list[Any] = [*ops.findings, *ops.scope.conditions]
    for call in reversed(ops.trace.equations):
        if not live.isdisjoint(call.outputs):
            live.update(call.inputs)
            seen += [call.static, *[ops.trace.types[slot] for slot in call.outputs]]
    text = "\n".join(map(str, seen))
    return {name for name, prefix in fresh.items() if prefix in text}


def unusable(what: str, error: OpstageError, scope: DimScope | None = None) -> Report:
    """Return the report on a program that could not start, because of its options or specs."""
    program = CheckedProgram(scope=scope if scope is not None else DimScope())
    return Report((Finding(what, str(error), rule="spec"),), (), None, Cost(0, 0), 0, program=program)


def _uncaught(error: Exception, ops: ShapeOps) -> Finding:
    """Return the finding for an exception that ended the program: an error outside of any op, or in the user's own
    code."""
    if isinstance(error, LocatedError):
        return Finding(
            error.op or "program",
            error.reason,
            error.region,
            ops.line_of(error.about) or error.source,
            rule=rule_of(error),
            constraint=getattr(error, "constraint", None),
        )
    reason = str(error) if isinstance(error, OpstageError) else f"{type(error).__name__}: {error}"
    if isinstance(error, AttributeError) and isinstance(error.name, str):
        reason += nearest(error.name, [name for name in dir(error.obj) if not name.startswith("_")])
    reason = "; ".join([reason, *getattr(error, "__notes__", ())])
    return Finding("program", reason, source=_user_line(error))


def _may_follow(error: Exception) -> bool:
    """Whether an error may be a consequence of an earlier finding, which left sizes unknown."""
    if isinstance(error, UnknownDimError) or not isinstance(error, (LocatedError, UsageError)):
        return True
    return isinstance(error, LocatedError) and _UNKNOWN_SIZE.search(error.reason) is not None


def _declarations(specs: Sequence[Spec]) -> tuple[DeclaredConstraint, ...]:
    """The constraints of the Specs, each once, where it was written first."""
    found: dict[str, DeclaredConstraint] = {}
    for spec in specs:
        for constraint in spec.where:
            found.setdefault(constraint, DeclaredConstraint(constraint, spec.source))
    return tuple(found.values())


def _user_line(error: BaseException) -> SourceLine | None:
    """Return the innermost line of the user's program in the traceback, or of a library if there is none."""
    found: SourceLine | None = None
    own = False
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_file(code.co_filename) and not (own and is_library(code.co_filename)):
            found = Place(code, traceback.tb_lasti, traceback.tb_lineno).source
            own = own or not is_library(code.co_filename)
        traceback = traceback.tb_next
    return found


# Captured state -------------------------------------------------------------------------------------------------------

# A program that reads lists, dicts, arrays or attributes of objects is correct on every interpreter: an eager run sees
# a change by itself, and a compiled program is recorded again. But each change costs a recording, and state that is not
# an argument is neither in a checkpoint nor in a graph.


def with_captured(report: Report, *programs: Any) -> Report:
    """Return the report with a note for each place of such state that the programs visibly read."""
    found: dict[tuple[str, object], Finding] = {}
    for program in programs:
        if program is None:
            continue
        try:
            read = Capture(program, listing=True)
        except ProgramError as error:
            found[str(error), None] = Finding("program", str(error), rule=CAPTURED, severity="note")
            continue
        for what, kind, where in read.changeable:
            found.setdefault(
                (what, where),
                Finding(
                    what,
                    f"{kind}, can change between two runs of the program: each change costs a compiled program a new "
                    "recording, and no checkpoint or graph holds it",
                    source=where,
                    rule=CAPTURED,
                    severity="note",
                    fix="pass it as an argument or as state; or make it what cannot change, such as a tuple, a frozen "
                    "dataclass or a read-only array",
                ),
            )
    return replace(report, notes=(*report.notes, *found.values())) if found else report
