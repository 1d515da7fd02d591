"""The contents of a graph's drawings: the whole graph, and each block that can be opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..folding import Fold, Group, folded
from .graph import Graph
from .outline import PARTS, Item, Outline, OutlineNode


class Scene(NamedTuple):
    """The content of a drawing: the members of each part, and the incoming and outgoing tensors by slot and name."""

    parts: Mapping[str, Sequence[OutlineNode | Group[OutlineNode]]]
    inputs: Sequence[tuple[int, str]]
    outputs: Sequence[tuple[int, str]]


def whole_scene(graph: Graph, outline: Outline) -> Scene:
    """Return the scene of the whole graph. Its inputs are those that change on every call: not parameters, state,
    step."""
    forward = {slot for node in outline.parts["forward"].nodes() for slot in node.equation.inputs}
    given = zip(graph.body.inputs, graph.input_names)
    inputs = [(s, n) for s, n in given if s in forward and not _is_kept(n)]
    outputs = list(zip(graph.body.outputs, graph.output_names))[:1]
    return Scene({part: outline.parts[part].members for part in PARTS}, inputs, outputs)


def _is_kept(name: str) -> bool:
    return name.split(".")[0] in ("params", "state", "step")


def block_scenes(graph: Graph, outline: Outline) -> dict[str, Scene]:
    """Return a scene for each region that can be opened, outer ones first."""
    found: dict[str, dict[str, Group[OutlineNode]]] = {}

    def walk(members: Sequence[OutlineNode | Group[OutlineNode]], part: str) -> None:
        for item in folded(members):
            if opens := opened(item):
                found.setdefault(opens, {})
            for group in item.members if isinstance(item, Fold) else (item,):
                if isinstance(group, Group):
                    regions[group.path, part] = group
                    walk(group.members, part)

    regions: dict[tuple[str, str], Group[OutlineNode]] = {}
    for part in ("forward", "backward"):
        walk(outline.parts[part].members, part)
    names = dict(zip(graph.body.inputs, graph.input_names))
    forward = list(outline.parts["forward"].nodes())
    scenes = {}
    for path in found:
        parts = {part: regions[path, part].members for part in ("forward", "backward") if (path, part) in regions}
        inside = list(regions[path, "forward"].nodes()) if "forward" in parts else []
        made = {slot for node in inside for slot in node.equation.outputs}
        read = dict.fromkeys(slot for node in inside for slot in node.equation.inputs if slot not in made)
        own = {id(node) for node in inside}
        wanted = {slot for node in forward if id(node) not in own for slot in node.equation.inputs}
        scenes[path] = Scene(
            parts,
            [(slot, names.get(slot, f"%{slot}")) for slot in read if not _is_kept(names.get(slot, ""))],
            [(slot, f"%{slot}") for slot in sorted(made & (wanted | set(graph.body.outputs)))],
        )
    return scenes


def opened(item: Item) -> str:
    """Return the path of the block that a box opens: a region, or the first of several of one form; empty if none."""
    first = item.members[0] if isinstance(item, Fold) else item
    return first.path if isinstance(first, Group) else ""
