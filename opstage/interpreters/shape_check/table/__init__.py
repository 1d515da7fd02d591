"""The table of a program's costs, by block and by op: from a checked program, as text, HTML and data."""

from ...formula import show_flops, show_formula, show_size
from .amounts import Amounts
from .rows import Operand, Row
from .table import Table

__all__ = ["Amounts", "Operand", "Row", "Table", "show_flops", "show_formula", "show_size"]
