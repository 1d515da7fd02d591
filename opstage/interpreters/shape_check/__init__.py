"""The shape checker: runs programs on shapes, which may be symbolic, and reports verdicts and costs."""

from typing import TYPE_CHECKING

from ... import lazily

if TYPE_CHECKING:
    from .check import check_base_program, unusable, with_captured
    from .contract import Contract
    from .finding import Finding
    from .interpreter import ShapeOps
    from .lint_subject import StepRoles
    from .program import CheckedProgram
    from .report import Assumption, DeclaredConstraint, Report
    from .rules import LINTS, RULES

__all__ = [
    "LINTS",
    "RULES",
    "Assumption",
    "CheckedProgram",
    "Contract",
    "DeclaredConstraint",
    "Finding",
    "Report",
    "ShapeOps",
    "StepRoles",
    "check_base_program",
    "unusable",
    "with_captured",
]

__getattr__ = lazily(
    __name__,
    {
        ".check": "check_base_program unusable with_captured",
        ".contract": "Contract",
        ".finding": "Finding",
        ".interpreter": "ShapeOps",
        ".lint_subject": "StepRoles",
        ".program": "CheckedProgram",
        ".report": "Assumption DeclaredConstraint Report",
        ".rules": "LINTS RULES",
    },
)
