"""The shape checker: the same programs on shapes alone, which may be symbolic; verdicts and a cost report."""

from .check import check_base_program, unusable
from .contract import Contract
from .interpreter import ShapeOps, ShapeRef
from .report import Assumption, Finding, Report

__all__ = ["Assumption", "Contract", "Finding", "Report", "ShapeOps", "ShapeRef", "check_base_program", "unusable"]
