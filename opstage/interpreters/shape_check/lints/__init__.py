"""Lints: oddities of a program that is valid by the rules of its ops, found in its trace.

A lint is a function from the `Subject` to findings. `LINTS` is the table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..finding import Finding, Severity
from ..program import CheckedProgram
from . import dataflow, values
from .subject import StepRoles, Subject

__all__ = ["LINTS", "Lint", "StepRoles", "lint"]


class Lint(NamedTuple):
    """rule       its name, by which formats and filters know it
    about      what it finds, in a sentence
    severity   of its findings; where it is a warning, the docstring of `find` says when it is an error
    """

    rule: str
    about: str
    severity: Severity
    find: Callable[[Subject], Iterable[Finding]]


LINTS: tuple[Lint, ...] = (
    Lint(dataflow.PARAMETER, "A parameter on which the loss does not depend.", "warning", dataflow.unused_parameters),
    Lint(dataflow.INPUT, "An argument or a leaf of the state that is never used.", "warning", dataflow.unused_inputs),
    Lint(
        dataflow.BLOCKED,
        "A parameter that reaches the loss only through ops without a derivative; an error where no parameter has a "
        "gradient.",
        "warning",
        dataflow.blocked_gradients,
    ),
    Lint(
        values.INDICES,
        "An index or label that the program writes down is out of range (only a warning in one_hot, which makes zeros "
        "of it).",
        "error",
        values.index_ranges,
    ),
    Lint(
        values.STRETCHED,
        "Infix broadcasting repeats both operands, such as (B,) + (B, 1).",
        "warning",
        values.stretched_both,
    ),
    Lint(
        values.SOFTMAX_RULE,
        "A softmax or cross-entropy over an axis of size 1, which is constant.",
        "warning",
        values.softmax_of_one,
    ),
    Lint(values.NORM_RULE, "A normalisation over one element, which is constant.", "warning", values.norm_of_one),
    Lint(
        values.LOGITS_RULE,
        "Probabilities are passed to cross_entropy or to a second softmax.",
        "warning",
        values.probabilities_as_logits,
    ),
    Lint(
        values.LOG_RULE,
        "The logarithm of a softmax or sigmoid, which is -inf where that rounds to 0.",
        "warning",
        values.log_of_probability,
    ),
    Lint(values.DROPOUT_RULE, "Dropout that keeps nothing.", "warning", values.dropout_all),
)


def lint(program: CheckedProgram, step: StepRoles | None, *, sound: bool, written: Any = None) -> list[Finding]:
    """All that the lints find; those of one line in a program that runs it often, such as a layer's, once.

    step     where the program is a whole training step
    sound    whether no error was found before
    written  the user's own function
    """
    subject = Subject(program, step, sound=sound, written=written)
    found = [finding for each in LINTS for finding in each.find(subject)]
    return list({(f.rule, f.op, f.source, f.reason): f for f in reversed(found)}.values())[::-1]
