"""Graph files, in the safetensors format: the text of a graph in the metadata, its large constants as tensors.

    format      "opstage graph"
    version     that of the text
    graph       the text (see `text`)
    digest      SHA-256 of the text; constants are named by theirs

Nothing in a file is executed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ...atomic import write_file
from ...ops.errors import UsageError
from ...ops.primitive import Primitive
from ...tensors import decode, decode_metadata, encode, read_bytes
from .graph import Graph
from .parser import parse, require_version
from .text import VERSION, large_constants, show_graph

FORMAT = "opstage graph"


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a file atomically. Raises UsageError if that fails."""
    text = show_graph(graph)
    metadata = {"format": FORMAT, "version": str(VERSION), "graph": text, "digest": _digest(text)}
    write_file(Path(path), [encode(large_constants(graph), metadata)])


def load_graph(path: str | os.PathLike[str], *, more_primitives: Mapping[str, Primitive] | None = None) -> Graph:
    """Read a graph that `save_graph` wrote.

    more_primitives     primitives of other packages, by name

    Raises UsageError, with the file name, for a file that is truncated, altered, not a graph, or of a newer version.
    """
    data = read_bytes(Path(path))
    metadata = decode_metadata(data, path)
    if metadata.get("format") != FORMAT or "graph" not in metadata:
        raise UsageError(f"{path}: it holds tensors but no graph; graph.save(path) writes one that does")
    try:
        require_version(int(metadata.get("version", "")))
    except ValueError as error:  # a subclass is UsageError
        raise UsageError(f"{path}: {error}") from None
    if _digest(metadata["graph"]) != metadata.get("digest"):
        raise UsageError(f"{path}: altered or damaged: the graph's digest does not match")
    try:
        return parse(metadata["graph"], decode(data, path), more_primitives=more_primitives)
    except UsageError as error:
        raise UsageError(f"{path}: altered or damaged: {error}") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
