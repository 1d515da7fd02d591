"""Running a program on the shape checker, so that whatever it does becomes a report and never an exception."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ...ops.errors import LocatedError, OpstageError, SourceLine, UsageError, is_user_file
from ...ops.primitive import Cost
from ...ops.spec import Spec
from ...ops.trees import flatten, unflatten
from ...options import Options
from ..registry import make_interpreter
from .interpreter import ShapeOps
from .report import Finding, Report


def check_base_program(
    program: Callable[..., Any], specs: Sequence[Spec], names: Sequence[str], options: Options, *, parameters: int = 0
) -> Report:
    """Check `program(ops, *refs)`, written against a base interpreter, for tensors of `specs` called `names`.

    The first `parameters` tensors are counted as the model's parameters.
    """
    try:
        runs_on = make_interpreter(options)
    except UsageError as error:
        return _report(ShapeOps(options), [Finding("Options", str(error))], None, (), 0)
    ops = ShapeOps(options, collect=True, runs_on=runs_on)
    outputs: Any = None
    try:
        refs = ops.declare(specs, names)
    except OpstageError as error:
        return _report(ops, [Finding("Spec", str(error))], None, (), 0)
    errors: list[Finding] = []
    count: Any = 0
    for ref in refs[:parameters]:
        count = count + (ref.type.size if ref.dtype.kind in "fO" else 0)
    inputs = tuple((name, str(ref.type)) for name, ref in zip(names, refs))
    try:
        result, structure = flatten(program(ops, *refs))
        adopted = [ops.adopt(ref) for ref in result]
        if not any(ref.doubtful for ref in adopted):
            outputs = unflatten(structure, [ref.type for ref in adopted])
    except LocatedError as error:
        errors.append(Finding(error.op or "program", error.reason, error.region, error.source))
    except UsageError as error:
        errors.append(Finding("program", str(error), source=_user_line(error)))
    except Exception as error:
        # after a first finding this may well follow from it: unknown dims have no values to compute with
        if not ops.findings:
            errors.append(Finding("program", f"{type(error).__name__}: {error}", source=_user_line(error)))
    return _report(ops, errors, outputs, inputs, count)


def _report(ops: ShapeOps, errors: list[Finding], outputs: Any, inputs: Any, parameters: Any) -> Report:
    return Report(
        errors=(*ops.findings, *errors),
        conditions=tuple(ops.assumptions),
        outputs=outputs,
        cost=Cost(ops.flops, ops.bytes),
        ops=ops.bound_ops,
        parameters=parameters,
        inputs=inputs,
    )


def _user_line(error: BaseException) -> SourceLine | None:
    """The innermost line of the user's program in the traceback."""
    lines = [
        SourceLine(frame.filename, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if is_user_file(frame.filename)
    ]
    return lines[-1] if lines else None
