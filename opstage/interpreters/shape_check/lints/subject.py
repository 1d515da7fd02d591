"""`Subject`: what a program did, as the lints ask for it: who made a tensor, what is a parameter, what is the loss."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from ....ops.cursor import Region
from ....ops.errors import SourceLine
from ....ops.primitive import Primitive
from ....ops.types import TensorType, is_float, show_shape
from ...structural import SCAN
from ..finding import Finding, Severity
from ..history import Entry, History, Named
from .reach import sources
from .turns import Turns


@dataclass(frozen=True)
class Step:
    """What of a program's inputs and outputs is the training's, where the program is a whole training step.

    trained   for each parameter, whether it is trained
    hidden    how many of the last inputs the optimizer takes: its slots and scalars
    new       how many of the last outputs are new parameters and slots
    """

    trained: tuple[bool, ...]
    hidden: int
    new: int


@final
class Subject:
    """A program's history, and what its inputs and outputs are for.

    parameters  the first argument's leaves, if it is a tree or is called `params`; one tensor of another name is an
                input like the others
    given       the other inputs that the user's program takes
    results     the numbers of what it returns
    sound       whether there was no error: after one, what is unused may be its consequence
    """

    def __init__(self, history: History, parameters: int, step: Step | None, *, sound: bool):
        self.history = history
        self.step = step
        self.sound = sound and bool(history.outputs)
        self.turns = Turns(history)
        inputs = [named for named in history.inputs if named.path]  # the others are no arguments: the random step
        if step is None and not all("." in named.path or named.path == "params" for named in inputs[:parameters]):
            parameters = 0
        self.parameters: Sequence[Named] = inputs[:parameters]
        self.given: Sequence[Named] = inputs[parameters : len(inputs) - (step.hidden if step else 0)]
        self.results = history.outputs[: len(history.outputs) - (step.new if step else 0)]

    @property
    def trained(self) -> list[Named]:
        """The float parameters whose gradient is wanted: where nothing says which, all of them."""
        flags = self.step.trained if self.step else (True,) * len(self.parameters)
        return [named for named, wanted in zip(self.parameters, flags) if wanted and is_float(named.type.dtype)]

    @cached_property
    def loss(self) -> int | None:
        """The number of the loss: the first result, if it is a float scalar."""
        if not self.results:
            return None
        number = self.results[0]
        maker = self.maker(number)
        if maker is None:
            return None
        type_ = maker.output_types[maker.outputs.index(number)]
        return number if not type_.shape and is_float(type_.dtype) else None

    @cached_property
    def used(self) -> set[int]:
        """All on which some result depends."""
        return sources(self.forward, self.results, self.turns)

    @cached_property
    def used_by_loss(self) -> set[int]:
        """All on which the loss depends; the other results are metrics and state."""
        if self.loss is None or self.results == (self.loss,):
            return self.used
        return sources(self.forward, [self.loss], self.turns)

    @cached_property
    def forward(self) -> Sequence[Entry]:
        """What the program itself did: of a step neither the backward pass nor the update."""
        entries, last = self.history.entries, max(self.results, default=0)
        if self.step is None:
            return entries
        end = bisect_right(entries, last, key=lambda entry: entry.outputs[0])
        while end < len(entries) and not (entries[end].rule or entries[end].backward):
            end += 1
        return entries[:end]

    # Ops ------------------------------------------------------------------------------------------------------------

    def calls(self, *primitives: Primitive) -> Iterator[Entry]:
        """The user's own calls of some ops, those in loops too; none whose types are guesses."""
        for primitive in primitives:
            yield from self._calls.get(primitive, ())

    @cached_property
    def _calls(self) -> dict[Primitive, list[Entry]]:
        found: dict[Primitive, list[Entry]] = {}

        def walk(entries: Sequence[Entry]) -> None:
            for entry in entries:
                if not (entry.rule or entry.backward or entry.doubtful):
                    found.setdefault(entry.primitive, []).append(entry)
                    if entry.primitive is SCAN:
                        walk(self.turns.of(entry).entries)

        walk(self.forward)
        return found

    def maker(self, number: int) -> Entry | None:
        """The op that made a tensor; None for an input or a constant."""
        return self._makers.get(number)

    @cached_property
    def _makers(self) -> dict[int, Entry]:
        makers: dict[int, Entry] = {}

        def walk(entries: Sequence[Entry]) -> None:
            for entry in entries:
                for number in entry.outputs:
                    makers[number] = entry
                if entry.primitive is SCAN:
                    walk(self.turns.of(entry).entries)

        walk(self.forward)
        return makers

    # Findings -------------------------------------------------------------------------------------------------------

    def source(self, entry: Entry | None) -> SourceLine | None:
        """The user's call that an op is, or serves."""
        if entry is None:
            return None
        place = entry.place or self.history.places.get(entry.ordinal)
        return None if place is None else place.source

    def at(
        self,
        entry: Entry,
        rule: str,
        reason: str,
        fix: str = "",
        *,
        severity: Severity = "warning",
        operands: Sequence[tuple[str, int, TensorType]] | None = None,
        constraint: str | None = None,
    ) -> Finding:
        """A finding at an op, with the paths of its operands: name, number and type of each, by default its own."""
        if operands is None:
            names = entry.primitive.operand_names(entry.static, len(entry.inputs))
            operands = list(zip(names, entry.inputs, entry.input_types))
        paths = {named.number: named.path for named in self.history.inputs}
        return Finding(
            entry.primitive.name,
            reason,
            Region(entry.region).name,
            self.source(entry),
            tuple(f"{name} is {paths[n]} {show_shape(type_.shape)}" for name, n, type_ in operands if paths.get(n)),
            rule=rule,
            severity=severity,
            fix=fix,
            constraint=constraint,
        )
