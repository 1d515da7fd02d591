"""Assertions for tests of programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .interpreters.shape_check.formats.terminal import render_finding
from .interpreters.shape_check.report import Report
from .ops.errors import UsageError
from .ops.spec import Claim, Shapes, Spec, declared, read_claims, read_inputs
from .ops.trees import flatten, map_leaves, structure_paths
from .optim import Optimizer
from .options import Options
from .training.program_check import check_program, line_of

__all__ = ["assert_like_one_rank", "assert_shapes"]
__dir__ = __all__.copy
from .training.trainer import scalar_trainer


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
        raise UsageError(f"where={list(where)!r} belongs to inputs as strings; pass where= to the Spec")
    chosen = Shapes(
        given if given else own.inputs,
        own.params if params is None else params,
        own.state if state is None else state,
        read_claims((*own.claims, *read_claims(claims))),
    )
    return assert_declared(program, chosen, step=step, train=train, strict=strict, optimizer=optimizer, options=options)


def assert_like_one_rank(
    loss: Callable[..., Any],
    params: Any,
    *batch: Any,
    mesh: str,
    state: Any = None,
    rtol: float = 1e-9,
    options: Options | None = None,
) -> None:
    """Train a step on one rank and one on a mesh; an AssertionError says what differs: loss, gradient or new state.

    A proof knows that ranks end a step alike, and cannot know what a program of collectives means: whether a ring has
    shifted as often as it must, or whether a loss that is summed over ranks should have been their mean. Arrays are
    small ones of a test; the step is SGD's, in float64.

    Raises:
        UsageError: a mesh of another form; a loss that cannot be sharded over it.
    """
    base = options or Options()
    ways = [base.replace(mesh=text, dtype="float64") for text in ("", mesh)]
    found = []
    for how in ways:
        trainer = scalar_trainer(loss, map_leaves(np.array, params), options=how, state=state)
        trees = {"loss": trainer.step(1.0, *batch), "gradient": trainer.get_params(), "state": trainer.state}
        found.append([leaf for tree in trees.values() for leaf in flatten(tree)[0]])
    paths = [(name, path) for name, tree in trees.items() for path in structure_paths(flatten(tree)[1])]
    for name, expected, got in zip([f"{name}.{path}" if path else name for name, path in paths], *found):
        apart = np.abs(np.asarray(got, np.float64) - np.asarray(expected, np.float64))
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        worst = float(np.max(apart, initial=0.0))
        if not worst <= rtol * scale:
            raise AssertionError(
                f"on mesh {mesh} the step has another {name} than on one rank: it differs by up to {worst:.3g}. The "
                "collectives of the program do not combine the ranks' parts to what one rank computes"
            )


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
    """Return `assert_shapes` for shapes that are already parsed."""
    checked = check_program(program, shapes, options=options, train=train, step=step, optimizer=optimizer)
    report = checked.report.strict() if strict else checked.report
    if not report.ok:
        name = getattr(program, "__name__", "the program")
        findings = "\n\n".join(render_finding(finding) for finding in report.errors)
        raise AssertionError(f"{name}, {checked.what}:\n\n{findings}\n")
    return report


def read_mark(inputs: Sequence[str], more: Mapping[str, Any], function: Any) -> tuple[Shapes, dict[str, Any]]:
    """Return the shapes in a pytest mark on a function, written as for its decorator, and the mark's other
    arguments."""
    rest = dict(more)
    read = read_inputs(inputs, rest.pop("where", ()), line_of(function))
    stated = read_claims(rest.pop("claims", ()))
    return Shapes(read, rest.pop("params", None), rest.pop("state", None), stated), rest
