"""The shape checker: the same programs on shapes alone, which may be symbolic; verdicts and a cost report."""

from .check import check_base_program, unusable
from .contract import Contract
from .history import Entry, History, Named
from .interpreter import ShapeOps, ShapeRef
from .report import RULES, Assumption, Declaration, Finding, Report

__all__ = [
    "RULES",
    "Assumption",
    "Contract",
    "Declaration",
    "Entry",
    "Finding",
    "History",
    "Named",
    "Report",
    "ShapeOps",
    "ShapeRef",
    "check_base_program",
    "unusable",
]
