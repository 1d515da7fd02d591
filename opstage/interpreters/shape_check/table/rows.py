"""The ops of a program's history, each with all that is done on its behalf: forward, backward and update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, final

from ....ops.cursor import Region
from ....ops.dims import Dim
from ....ops.errors import Place
from ....ops.types import TensorType, is_float
from ...folding import UPDATE
from ..history import Entry, History
from .amounts import Amounts


class Operand(NamedTuple):
    """A tensor that an op reads or makes; `path` is empty unless the program was given it."""

    path: str
    type: TensorType

    def __str__(self) -> str:
        return f"{self.path} {self.type}".strip()


@final
class Row:
    """One op that the program calls.

    op          its name; where a tape took it apart, the names of the parts
    region      the path of the region in which it was called
    operands    what it reads; results: what it makes that users see
    form        a number that is the same for ops that do the same on tensors of the same types
    """

    __slots__ = ("op", "region", "operands", "results", "amounts", "form", "place")

    def __init__(
        self,
        op: str,
        region: tuple[tuple[str, int], ...],
        operands: tuple[Operand, ...],
        results: tuple[Operand, ...],
        amounts: Amounts,
        form: int,
        place: Place | None,
    ):
        self.op = op
        self.region = region
        self.operands = operands
        self.results = results
        self.amounts = amounts
        self.form = form
        self.place = place

    @property
    def region_name(self) -> str:
        """Such as `blocks.0.attention`."""
        return Region(self.region).name


class _Draft:
    """What is found of a row: its entries by phase, parameters and kept tensors that are counted with it."""

    __slots__ = ("forward", "backward", "update", "parameters", "saved")

    def __init__(self) -> None:
        self.forward: list[Entry] = []
        self.backward: list[Entry] = []
        self.update: list[Entry] = []
        self.parameters: list[Dim] = []
        self.saved: list[Dim] = []


def rows_of(history: History) -> tuple[list[Row], list[Row], Dim]:
    """The ops of the program; those of the update that serve no single op (clipping); elements of parameters that no op
    reads."""
    found = _Reading(history)
    finish = _Finish(history)
    return (
        [finish.row(draft) for draft in found.drafts.values()],
        [finish.row(draft) for draft in found.shared],
        _sum(found.unread),
    )


class _Reading:
    """One walk over the entries.

    What the backward pass does for an op has the op's ordinal. What the update does belongs to the op that reads the
    parameter first, else to the op whose gradient it works on.
    """

    def __init__(self, history: History):
        entries = history.entries
        self.entries = entries
        self.start, self.stop = last_backward_pass(entries)
        self.drafts: dict[int, _Draft] = {}
        self.shared: list[_Draft] = []
        given = history.inputs[: history.parameters]
        parameters = {named.number: named.type.size for named in given if is_float(named.type.dtype)}
        owners: dict[int, int] = {}  # of a parameter, or of a gradient and what the update makes of it
        drafts = self.drafts
        for i, entry in enumerate(entries):
            path, ordinal = entry.region, entry.ordinal
            if path and path[0][0] == UPDATE:
                self._update(entry, parameters, owners)
                continue
            draft = drafts.get(ordinal)
            if draft is None:
                draft = drafts[ordinal] = _Draft()
            if entry.backward or self.start <= i < self.stop:
                draft.backward.append(entry)
                owners.update(dict.fromkeys(entry.outputs, ordinal))
                continue
            draft.forward.append(entry)
            for number in entry.inputs:
                if number in parameters and number not in owners:
                    owners[number] = ordinal
                    draft.parameters.append(parameters[number])
        self.unread = [size for number, size in parameters.items() if number not in owners]
        self._keep(history)

    def _update(self, entry: Entry, parameters: dict[int, Dim], owners: dict[int, int]) -> None:
        read = [number for number in entry.inputs if number in parameters]
        served = {owners[number] for number in read or entry.inputs if number in owners}
        if len(served) == 1:
            (owner,) = served
            owners.update(dict.fromkeys(entry.outputs, owner))
            self.drafts[owner].update.append(entry)
        else:
            draft = _Draft()
            draft.update.append(entry)
            self.shared.append(draft)

    def _keep(self, history: History) -> None:
        """What the backward pass reads of what the forward pass made; it goes from the last op to the first."""
        entries, start = self.entries, self.start
        if start == self.stop:
            return
        cut = min((entry.outputs[0] for entry in entries[start : self.stop] if entry.outputs), default=0)
        not_made = {named.number for named in history.inputs} | history.constants.keys()
        of: dict[int, int] = {}  # a view and what it looks at
        sizes: dict[int, TensorType] = {}
        for entry in entries[:start]:
            if entry.primitive.view:
                of[entry.outputs[0]] = of.get(entry.inputs[0], entry.inputs[0])
            elif not entry.doubtful:
                sizes.update(zip(entry.outputs, entry.output_types))
        keeper: dict[int, int] = {}
        for entry in entries[start : self.stop]:
            for number in entry.inputs:
                if number < cut:
                    keeper[of.get(number, number)] = entry.ordinal
        for number, ordinal in keeper.items():
            if number not in not_made and number in sizes:
                self.drafts[ordinal].saved.append(sizes[number].nbytes)


def last_backward_pass(entries: Sequence[Entry]) -> tuple[int, int]:
    """Where in the history the last run of backward entries starts and stops, the cotangent from which it starts and
    zeros for what it does not reach included; (0, 0) where there is none."""
    last = next((i for i in range(len(entries) - 1, -1, -1) if entries[i].backward), None)
    if last is None:
        return 0, 0
    start, stop = last, last + 1
    while start and entries[start - 1].backward:
        start -= 1
    while start and _is_filling(entries[start - 1]):
        start -= 1
    while stop < len(entries) and _is_filling(entries[stop]):
        stop += 1
    return start, stop


def _is_filling(entry: Entry) -> bool:
    return entry.rule and not entry.inputs


class _Finish:
    """Drafts made into rows. Ops with the same entries share their amounts, so what repeats is summed once."""

    def __init__(self, history: History):
        self._paths = {named.number: named.path for named in history.inputs}
        self._amounts: dict[Any, Amounts] = {}
        self._forms: dict[Any, int] = {}

    def row(self, draft: _Draft) -> Row:
        amounts = self._amounts_of(draft)
        entries = draft.forward or draft.backward or draft.update
        called = [entry for entry in entries if not entry.rule]
        parts = called[:1] or [entry for entry in entries if entry.inputs] or entries
        made = {number for entry in parts for number in entry.outputs}
        operands: dict[int, Operand] = {}
        for entry in parts:
            for number, type_ in zip(entry.inputs, entry.input_types):
                if number not in made:
                    operands[number] = Operand(self._paths.get(number, ""), type_)
        last = parts[-1]
        visible = len(last.outputs) if last.primitive.outputs[-1].startswith("*") else len(last.primitive.outputs)
        key = (amounts, *[_form(entry) for entry in parts])
        return Row(
            " + ".join(dict.fromkeys(entry.primitive.name for entry in parts)),
            entries[0].region,
            tuple(operands.values()),
            tuple([Operand("", type_) for type_ in last.output_types[:visible]]),
            amounts,
            self._forms.setdefault(key, len(self._forms)),
            last.place,
        )

    def _amounts_of(self, draft: _Draft) -> Amounts:
        phases = [
            [entry.cost for entry in phase if not entry.doubtful]
            for phase in (draft.forward, draft.backward, draft.update)
        ]
        key = (*map(tuple, phases), tuple(draft.parameters), tuple(draft.saved))
        found = self._amounts.get(key)
        if found is None:
            flops = [_sum(cost.flops for cost in phase) for phase in phases]
            moved = [_sum(cost.bytes for cost in phase) for phase in phases]
            found = self._amounts[key] = Amounts._make([_sum(draft.parameters), *flops, *moved, _sum(draft.saved)])
        return found


def _form(entry: Entry) -> tuple[Any, ...]:
    """What tells one kind of call from another; the site of a random draw does not."""
    static = tuple([value for name, value in entry.static.items() if name != "site"])
    return (entry.primitive, entry.input_types, entry.output_types, static)


def _sum(dims: Iterable[Dim]) -> Dim:
    result: Dim = 0
    for dim in dims:
        result = result + dim
    return result
