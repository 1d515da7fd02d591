"""Every kind of finding, by the name in formats and filters."""

from __future__ import annotations

from .finding import CLAIM_RULES, RANGE_RULES
from .lints import LINTS

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
    CAPTURED: "The program reads state of Python's that may change between two runs.",
    "program": "The program broke a rule of refs, or raised an error of its own.",
    NO_SCALAR_LOSS: "What may be a loss gives no scalar, so that its forward pass alone was checked.",
    UNUSED_SUPPRESSION: "A comment `# opstage: ignore[…]` names a rule of which its line has no finding.",
    **CLAIM_RULES,
    **RANGE_RULES,
    **{lint.rule: lint.about for lint in LINTS},
}
"""A sentence on each rule."""
