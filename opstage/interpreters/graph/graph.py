"""`Graph`: a recorded program, as equations between numbered tensors in static single assignment form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, final

from ...ops.body import Body
from ...ops.types import EXACT, DType, TensorType
from ..registry import graph_format

if TYPE_CHECKING:
    from ...options import Options
    from .profile import Explanation


@final
class Graph:
    """A closed body with the names of its inputs and outputs. Immutable; compared and hashed by identity.

    body            inputs, constants, equations, outputs (see `opstage.ops.body`)
    input_names     the path of every input: `params.w1`, `x`
    output_names    the path of every output
    dtype, seed     of the recording interpreter: the dtype of floats, and the seed of random draws

    Raises:
        UsageError: a file to load that is missing or damaged.
    """

    __slots__ = ("body", "input_names", "output_names", "dtype", "seed")

    def __init__(self, body: Body, input_names: Sequence[str], output_names: Sequence[str], dtype: DType, seed: int):
        self.body = body
        self.input_names = tuple(input_names)
        self.output_names = tuple(output_names)
        self.dtype = dtype
        self.seed = seed

    def __repr__(self) -> str:
        return f"<graph of {len(self.body.equations)} ops, {len(self.input_names)} inputs>"

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return self.body.input_types

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return self.body.output_types

    @property
    def is_exact(self) -> bool:
        """Whether it computes with fractions, which have no machine representation."""
        return self.dtype == EXACT or any(type_.dtype.kind == "O" for type_ in self.body.types)

    def __str__(self) -> str:
        """The graph as text, a line per equation, which `parse` reads back; see `opstage.interpreters.graph.text`."""
        from .text import show_graph

        return show_graph(self)

    @staticmethod
    def parse(text: str, constants: Mapping[str, Any] | None = None) -> Graph:
        """Parse the text of a graph; `constants` has the arrays that the text only names, see `large_constants(graph)`.

        Raises UsageError, with the line, for text that is not a graph.
        """
        from .text import parse

        return parse(text, constants)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the graph to a file atomically; `load` reads it. Raises UsageError."""
        from .text import save_graph

        save_graph(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Graph:
        """Read a graph from a file that `save` wrote. Nothing in the file is executed. Raises UsageError for any other
        file."""
        from .text import load_graph

        return load_graph(path)

    def to_dot(self) -> str:
        """Return the graph in Graphviz's language: a node per op, a cluster per region, a colour per part of a step."""
        from .drawing import to_dot

        return to_dot(self)

    def to_svg(self) -> str:
        """Return a drawing of the graph with its regions folded: forward, backward and update side by side."""
        from .drawing import to_svg

        return to_svg(self)

    def to_html(self, title: str = "graph") -> str:
        """Return a self-contained page: the drawing, and a searchable list of all ops with shape, bytes and source
        line."""
        from .html_page import to_html

        return to_html(self, title)

    def explain(self, options: Options | None = None) -> Explanation:
        """Explain how the graph is compiled: the effect of each pass, kernels per step, planned peak memory.

        The result has the numbers as attributes and prints as text. Raises UsageError for symbolic sizes and for graphs
        of fractions.
        """
        from .profile import explain

        return explain(self, options)

    def with_body(self, body: Body) -> Graph:
        """Return the same program with other equations."""
        return Graph(body, self.input_names, self.output_names, self.dtype, self.seed)

    def to_onnx(self, path: str | PathLike[str], values: Mapping[str, Any] | None = None) -> None:
        """Write the program as an ONNX model with the same names of inputs and outputs.

        values   trees of arrays by argument, `{"params": params}`, or arrays by input, `{"params.w1": w1}`: these
                 inputs become constants of the model

        Symbolic sizes stay symbolic. Random draws depend on the input `step` and have the same bits as in Opstage.
        Raises UnsupportedError at an op that ONNX cannot express, UsageError if a value does not fit or the package
        onnx is missing; then nothing is written.
        """
        graph_format("onnx").write(self, path, values)
