"""What a program costs, by block and by op: read from a checked program, shown as text, HTML and data."""

from ...formula import show_flops, show_formula, show_size
from .amounts import Amounts
from .rows import Operand, Row
from .table import Table

__all__ = ["Amounts", "Operand", "Row", "Table", "show_flops", "show_formula", "show_size"]
