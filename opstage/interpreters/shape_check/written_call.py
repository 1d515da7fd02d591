"""`WrittenCall`: the source of an op's call, so that a fix can use the user's own names."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ...ops.errors import SourceLine
from ...ops.primitive import Primitive


@dataclass(frozen=True)
class WrittenCall:
    """The texts of a call's operands and keywords; names of the operands if the call cannot be parsed."""

    operands: tuple[str, ...]
    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()
    callee: str = ""
    shape: tuple[str, ...] = ()

    @staticmethod
    def of(primitive: Primitive, names: tuple[str, ...], source: SourceLine | None) -> WrittenCall:
        """Return the call of an op at a line; `names` are those of the operands present."""
        unread = WrittenCall(names)
        text, node = call_at(source)
        if isinstance(node, ast.BinOp) and len(names) == 2:
            return WrittenCall((_text(text, node.left), _text(text, node.right)))
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Attribute)
            or node.func.attr != primitive.name
        ):
            return unread
        args = node.args
        if len(args) == 1 and isinstance(args[0], (ast.List, ast.Tuple)):
            args = args[0].elts
        texts = tuple([_text(text, arg) for arg in args])
        present = tuple([word for word in texts if word != "None"])
        if any(isinstance(arg, ast.Starred) for arg in args) or len(present) != len(names):
            return unread
        keywords = tuple([(k.arg, _text(text, k.value)) for k in node.keywords if k.arg])
        shape = next((k.value for k in node.keywords if k.arg == "shape"), None)
        sizes = shape.elts if isinstance(shape, ast.Tuple) else []
        whole = not any(isinstance(size, ast.Starred) for size in sizes)
        return WrittenCall(
            present, texts, keywords, _text(text, node.func), tuple([_text(text, s) for s in sizes]) if whole else ()
        )

    def reordered(self, order: Sequence[int]) -> str:
        """Return the call with its operands in another order."""
        texts = [self.operands[i] for i in order]
        for i in [i for i, text in enumerate(self.positional) if text == "None"]:
            texts.insert(i, "None")
        return f"{self.callee}({', '.join([*texts, *(f'{k}={v}' for k, v in self.keywords)])})"


def _text(text: str, node: ast.expr) -> str:
    return ast.get_source_segment(text, node) or ast.unparse(node)


def call_at(source: SourceLine | None) -> tuple[str, ast.Call | ast.BinOp | None]:
    """Return the call or operator that a line underlines; None if it continues on the next line."""
    if source is None or not source.carets:
        return "", None
    start = len(source.carets) - len(source.carets.lstrip())
    text = source.text[start : len(source.carets)]
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        return text, None
    return text, node if isinstance(node, (ast.Call, ast.BinOp)) else None
