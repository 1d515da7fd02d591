"""Every kind of finding, by the name in formats and filters, and the table of the lints.

A lint is a function from the `Subject` to findings: oddities of a program that is valid by the rules of its ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import dataflow_lints as dataflow
from . import value_lints as values
from .finding import CLAIM_RULES, ONE_BY_ONE, RANGE_RULES, Finding, Severity
from .lint_subject import StepRoles, Subject
from .program import CheckedProgram


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


# Rules ----------------------------------------------------------------------------------------------------------------


UNDECIDED = "undecided"
UNUSED_SUPPRESSION = "unused-suppression"
NO_SCALAR_LOSS = "no-scalar-loss"
MESH = "mesh"
CAPTURED = "captured-state"

RULES: dict[str, str] = {
    "shape": "The shapes, ranks or static parameters of an op do not fit.",
    "dtype": "An operand has a dtype that the op does not take; nothing is promoted silently.",
    "unsupported": "The interpreter that the program is for cannot compute an op.",
    UNDECIDED: "A relation of named dims was neither proved nor refuted (an error with strict).",
    "spec": "A Spec cannot be read, or its constraints contradict each other.",
    "checkpoint": "A tensor of a checkpoint is missing, not expected, or of another shape or dtype than the model's.",
    "shared-array": "One array, or arrays that share memory, are at two places of the parameters.",
    "batch": "Data do not fit the declared shapes of the batch.",
    "memory": "A step takes more memory than it may.",
    MESH: "A collective is in a wrong place, or the ranks of a mesh end a step with different numbers.",
    ONE_BY_ONE: "An op under vmap that runs on one example after the other, in a loop.",
    CAPTURED: "The program reads state of Python's that may change between two runs.",
    "program": "The program broke a rule of refs, or raised an error of its own.",
    NO_SCALAR_LOSS: "What may be a loss gives no scalar, so that its forward pass alone was checked.",
    UNUSED_SUPPRESSION: "A comment `# opstage: ignore[…]` names a rule of which its line has no finding.",
    **CLAIM_RULES,
    **RANGE_RULES,
    **{lint.rule: lint.about for lint in LINTS},
}
"""A sentence on each rule."""
