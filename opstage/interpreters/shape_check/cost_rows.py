"""The ops of a checked program, each with the work done for it in forward pass, backward pass and update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from ...ops.body import Equation
from ...ops.dims import Dim
from ...ops.dispatch import Region
from ...ops.errors import Place
from ...ops.primitive import Cost
from ...ops.types import TensorType, is_float
from ..graph.outline import UPDATE, phase_of
from .program import CheckedProgram

# Amounts --------------------------------------------------------------------------------------------------------------


class Amounts(NamedTuple):
    """parameters   elements of the parameters that it reads, each counted where it is read first
    forward, backward, update
                    FLOPs of the three phases of a training step
    forward_bytes, backward_bytes, update_bytes
                    bytes read and written by its kernels: every operand and result once, none for a view
    saved           bytes kept from the forward pass until the backward pass has read them, without parameters and
    inputs; a tensor kept by several ops is counted at the first, and a view as its base
    """

    parameters: Dim = 0
    forward: Dim = 0
    backward: Dim = 0
    update: Dim = 0
    forward_bytes: Dim = 0
    backward_bytes: Dim = 0
    update_bytes: Dim = 0
    saved: Dim = 0

    @property
    def flops(self) -> Dim:
        """The sum over the three phases."""
        return self.forward + self.backward + self.update

    @property
    def moved(self) -> Dim:
        """The sum over the three phases."""
        return self.forward_bytes + self.backward_bytes + self.update_bytes

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte moved; None if it has names, or nothing is moved."""
        flops, moved = self.flops, self.moved
        return flops / moved if isinstance(flops, int) and isinstance(moved, int) and moved else None

    def times(self, count: int) -> Amounts:
        """Return the amounts of `count` of them."""
        return self if count == 1 else Amounts(*[count * amount for amount in self])


def is_nothing(amount: Dim) -> bool:
    """Whether an amount is the number 0."""
    return isinstance(amount, int) and amount == 0


def total(parts: Iterable[Amounts]) -> Amounts:
    """Return the sum; equal parts are multiplied."""
    counts: dict[Amounts, int] = {}
    for part in parts:
        counts[part] = counts.get(part, 0) + 1
    sums: list[Dim] = [0] * len(Amounts._fields)
    for part, count in counts.items():
        for i, amount in enumerate(part.times(count)):
            if not is_nothing(amount):
                sums[i] = sums[i] + amount
    return Amounts(*sums)


class Operand(NamedTuple):
    """A tensor that an op reads or computes; `path` is empty unless it is a program input."""

    path: str
    type: TensorType

    def __str__(self) -> str:
        return f"{self.path} {self.type}".strip()


@final
@dataclass(eq=False)
class Row:
    """One op that the program calls.

    op          its name; if a tape decomposed it, the names of the parts
    region      the region of its call
    operands    its operands; results: its visible results
    form        a number that is equal for ops that do the same on tensors of the same types
    """

    op: str
    region: Region
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    amounts: Amounts
    form: int
    place: Place | None

    @property
    def region_name(self) -> str:
        """The name of its region, such as `blocks.0.attention`."""
        return self.region.name


@dataclass
class _Draft:
    """A row under construction: its equations by phase, and the parameters and saved tensors counted with it."""

    forward: list[Equation] = field(default_factory=list)
    backward: list[Equation] = field(default_factory=list)
    update: list[Equation] = field(default_factory=list)
    parameters: list[Dim] = field(default_factory=list)
    saved: list[Dim] = field(default_factory=list)


def rows_of(program: CheckedProgram) -> tuple[list[Row], list[Row], Dim]:
    """Return the ops of the program, those of the update that belong to no single op (clipping), and the number of
    elements of parameters that no op reads."""
    found = _Reading(program)
    finish = _Finish(program)
    return (
        [finish.row(draft) for draft in found.drafts.values()],
        [finish.row(draft) for draft in found.shared],
        _sum(found.unread),
    )


class _Reading:
    """One pass over the equations.

    Backward equations have the ordinal of their forward op. Update equations belong to the op that reads the parameter
    first, else to the op whose gradient they use.
    """

    def __init__(self, program: CheckedProgram):
        self.program = program
        self.start, self.stop = last_backward_pass(program)
        self.drafts: dict[int, _Draft] = {}
        self.shared: list[_Draft] = []
        given = program.body.inputs[: program.parameters]
        parameters = {slot: type_.size for slot, type_ in zip(given, program.types(given)) if is_float(type_.dtype)}
        owners: dict[int, int] = {}  # of a parameter, or of a gradient and results computed from it in the update
        drafts = self.drafts
        for i, call in enumerate(program.body.equations):
            ordinal, phase = call.ordinal, phase_of(call.region, call.backward)
            if phase == UPDATE:
                self._update(call, parameters, owners)
                continue
            draft = drafts.get(ordinal)
            if draft is None:
                draft = drafts[ordinal] = _Draft()
            if phase == "backward" or self.start <= i < self.stop:
                draft.backward.append(call)
                owners.update(dict.fromkeys(call.outputs, ordinal))
                continue
            draft.forward.append(call)
            for number in call.inputs:
                if number in parameters and number not in owners:
                    owners[number] = ordinal
                    draft.parameters.append(parameters[number])
        self.unread = [size for number, size in parameters.items() if number not in owners]
        self._keep()

    def _update(self, call: Equation, parameters: dict[int, Dim], owners: dict[int, int]) -> None:
        read = [number for number in call.inputs if number in parameters]
        served = {owners[number] for number in read or call.inputs if number in owners}
        if len(served) == 1:
            (owner,) = served
            owners.update(dict.fromkeys(call.outputs, owner))
            self.drafts[owner].update.append(call)
        else:
            draft = _Draft()
            draft.update.append(call)
            self.shared.append(draft)

    def _keep(self) -> None:
        """Find the forward results that the backward pass reads, from the last op to the first."""
        program, start = self.program, self.start
        body, equations = program.body, program.body.equations
        if start == self.stop:
            return
        cut = min((call.outputs[0] for call in equations[start : self.stop] if call.outputs), default=0)
        not_made = {*body.inputs, *[constant.slot for constant in body.constants]}
        of: dict[int, int] = {}  # maps a view to its base
        sizes: dict[int, TensorType] = {}
        for call in equations[:start]:
            if call.primitive.view:
                of[call.outputs[0]] = of.get(call.inputs[0], call.inputs[0])
            elif not program.is_doubtful(call):
                sizes.update((slot, body.types[slot]) for slot in call.outputs)
        keeper: dict[int, int] = {}
        for call in equations[start : self.stop]:
            for number in call.inputs:
                if number < cut:
                    keeper[of.get(number, number)] = call.ordinal
        for number, ordinal in keeper.items():
            if number not in not_made and number in sizes:
                self.drafts[ordinal].saved.append(sizes[number].nbytes)


def last_backward_pass(program: CheckedProgram) -> tuple[int, int]:
    """Return the range of the last run of backward equations, including the initial cotangent and zeros for unreached
    tensors; (0, 0) if there is none."""
    equations = program.body.equations
    last = next((i for i in range(len(equations) - 1, -1, -1) if equations[i].backward), None)
    if last is None:
        return 0, 0
    start, stop = last, last + 1
    while start and equations[start - 1].backward:
        start -= 1
    while start and _is_filling(program, equations[start - 1]):
        start -= 1
    while stop < len(equations) and _is_filling(program, equations[stop]):
        stop += 1
    return start, stop


def _is_filling(program: CheckedProgram, call: Equation) -> bool:
    return not call.inputs and program.is_rule(call)


class _Form(NamedTuple):
    """One kind of call, identified by `number`; calls with guessed types have no cost."""

    number: int
    cost: Cost


class _Finish:
    """Converts drafts to rows. Ops with the same equations share their amounts, so repeated ones are summed once."""

    def __init__(self, program: CheckedProgram):
        self._program = program
        self._paths = dict(zip(program.body.inputs, program.names))
        self._kinds: dict[Any, _Form] = {}
        self._amounts: dict[Any, Amounts] = {}
        self._forms: dict[Any, int] = {}

    def row(self, draft: _Draft) -> Row:
        program = self._program
        forms = [[self._form(e) for e in phase] for phase in (draft.forward, draft.backward, draft.update)]
        amounts = self._amounts_of(draft, forms)
        equations = draft.forward or draft.backward or draft.update
        called = [e for e in equations if not program.is_rule(e)]
        parts = called[:1] or [e for e in equations if e.inputs] or equations
        made = {slot for e in parts for slot in e.outputs}
        operands: dict[int, Operand] = {}
        for e in parts:
            for slot in e.inputs:
                if slot not in made:
                    operands[slot] = Operand(self._paths.get(slot, ""), program.body.types[slot])
        last = parts[-1]
        visible = len(last.outputs) if last.primitive.outputs[-1].startswith("*") else len(last.primitive.outputs)
        key = (amounts, *[self._form(e).number for e in parts])
        return Row(
            " + ".join(dict.fromkeys(e.primitive.name for e in parts)),
            equations[0].region,
            tuple(operands.values()),
            tuple([Operand("", type_) for type_ in program.types(last.outputs[:visible])]),
            amounts,
            self._forms.setdefault(key, len(self._forms)),
            program.place(last),
        )

    def _form(self, e: Equation) -> _Form:
        """Return a key of equal calls; the site of a random draw is not part of it."""
        primitive, static, inputs, outputs = e[:4]
        types, doubtful = self._program.body.types, self._program.is_doubtful(e)
        if "site" in static:
            static = {name: value for name, value in static.items() if name != "site"}
        key = (primitive, len(inputs), doubtful, *[types[slot] for slot in inputs + outputs], *static.values())
        found = self._kinds.get(key)
        if found is None:
            known = self._program.types
            cost = Cost(0, 0) if doubtful else primitive.cost(known(inputs), known(outputs), e.static)
            found = self._kinds[key] = _Form(len(self._kinds), cost)
        return found

    def _amounts_of(self, draft: _Draft, forms: Sequence[Sequence[_Form]]) -> Amounts:
        key = (
            *[tuple([form.number for form in phase]) for phase in forms],
            tuple(draft.parameters),
            tuple(draft.saved),
        )
        found = self._amounts.get(key)
        if found is None:
            flops = [_sum(form.cost.flops for form in phase) for phase in forms]
            moved = [_sum(form.cost.bytes for form in phase) for phase in forms]
            found = self._amounts[key] = Amounts._make([_sum(draft.parameters), *flops, *moved, _sum(draft.saved)])
        return found


def _sum(dims: Iterable[Dim]) -> Dim:
    result: Dim = 0
    for dim in dims:
        result = result + dim
    return result
