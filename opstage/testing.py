"""Assertions for tests of programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .interpreters.shape_check import Report
from .interpreters.shape_check.formats.terminal import render_finding
from .ops.claims import Claim, read_claims
from .ops.declared import Shapes, declared, read_inputs
from .ops.errors import UsageError
from .ops.spec import Spec
from .options import Options
from .training.optim import Optimizer
from .training.program_check import check_program, line_of


def assert_shapes(
    program: Callable[..., Any],
    *inputs: str,
    params: Any = None,
    state: Any = None,
    where: Sequence[str] = (),
    step: bool | None = None,
    train: bool = True,
    strict: bool = False,
    optimizer: Optimizer | None = None,
    options: Options | None = None,
    claims: Sequence[Claim | str] = (),
    **specs: Spec,
) -> Report:
    """Check a program on shapes and return the report; an AssertionError lists what is wrong.

    inputs   texts `NAME: DIMS [DTYPE]`, as for `opstage.shapes`; without any, the shapes that the program declares
    specs    Specs by argument name, instead of texts
    strict   whether anything undecided is an error
    claims   statements about what the outputs depend on, such as "causal:T", besides those that the program declares

    The other arguments are those of `opstage.shapes` and of `opstage check`. Raises UsageError for shapes that do not
    match the program's arguments.

    Raises:
        UsageError: shapes that cannot be read, or that do not go with the arguments.
    """
    own = declared(program) or Shapes({})
    given = {**read_inputs(inputs, where if inputs else ()), **specs}
    if where and not inputs:
        raise UsageError(f"where={list(where)!r} goes with inputs as text; a Spec has a where of its own")
    chosen = Shapes(
        given if given else own.inputs,
        own.params if params is None else params,
        own.state if state is None else state,
        read_claims((*own.claims, *read_claims(claims))),
    )
    return assert_declared(program, chosen, step=step, train=train, strict=strict, optimizer=optimizer, options=options)


def assert_declared(
    program: Callable[..., Any],
    shapes: Shapes,
    *,
    step: bool | None = None,
    train: bool = True,
    strict: bool = False,
    optimizer: Optimizer | None = None,
    options: Options | None = None,
) -> Report:
    """`assert_shapes` for shapes that are already parsed."""
    checked = check_program(program, shapes, options=options, train=train, step=step, optimizer=optimizer)
    report = checked.report.strict() if strict else checked.report
    if not report.ok:
        name = getattr(program, "__name__", "the program")
        findings = "\n\n".join(render_finding(finding) for finding in report.errors)
        raise AssertionError(f"{name}, {checked.what}:\n\n{findings}\n")
    return report


def read_mark(inputs: Sequence[str], more: Mapping[str, Any], function: Any) -> tuple[Shapes, dict[str, Any]]:
    """The shapes in a pytest mark on a function, written as for its decorator, and the mark's other arguments."""
    rest = dict(more)
    read = read_inputs(inputs, rest.pop("where", ()), line_of(function))
    stated = read_claims(rest.pop("claims", ()))
    return Shapes(read, rest.pop("params", None), rest.pop("state", None), stated), rest
