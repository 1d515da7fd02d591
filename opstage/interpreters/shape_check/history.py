"""What a program did on shapes, op by op: the tables, the lints and the cost of each part are read from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...ops.dims import DimScope
from ...ops.errors import Place
from ...ops.primitive import Cost, Primitive, Static
from ...ops.types import TensorType


class Entry(NamedTuple):
    """One op that was bound. Tensors have numbers, by which one entry's outputs are found among another's inputs.

    ordinal     which op of the user's program it is, or serves
    rule        whether a derivative rule or a decomposition bound it, on behalf of that op
    backward    whether it carries cotangents back
    place       where the user's program called the op; None for what a rule bound
    doubtful    whether an error came before it, so that its types are guesses
    """

    primitive: Primitive
    static: Static
    inputs: tuple[int, ...]
    input_types: tuple[TensorType, ...]
    outputs: tuple[int, ...]
    output_types: tuple[TensorType, ...]
    cost: Cost
    region: tuple[tuple[str, int], ...]
    ordinal: int
    rule: bool
    backward: bool
    place: Place | None
    doubtful: bool


class Named(NamedTuple):
    """A tensor that the program was given: its number, its path for messages, its type."""

    number: int
    path: str
    type: TensorType


@dataclass
class History:
    """scope       where the named dims live
    entries     every op, in order
    inputs      what the program was given, in order
    parameters  how many of the inputs, from the first on, are the model's parameters
    tied        for each parameter that stands at several places the paths of all of them, the first as in `inputs`
    constants   numbers of the tensors that the program made from values, with the values
    outputs     numbers of what it returned, in order; empty where an error kept it from returning
    places      where the user's program called each op, by its ordinal
    """

    scope: DimScope = field(default_factory=DimScope)
    entries: list[Entry] = field(default_factory=list)
    inputs: list[Named] = field(default_factory=list)
    parameters: int = 0
    tied: tuple[tuple[str, ...], ...] = ()
    constants: dict[int, Any] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()
    places: dict[int, Place | None] = field(default_factory=dict)
