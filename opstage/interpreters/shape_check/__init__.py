"""The shape checker: the same programs on shapes alone, which may be symbolic; verdicts and a cost report."""

from .captured import with_captured
from .check import check_base_program, unusable
from .contract import Contract
from .finding import Finding
from .interpreter import ShapeOps
from .lints import LINTS, StepRoles
from .program import CheckedProgram
from .report import Assumption, DeclaredConstraint, Report
from .rules import RULES

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
