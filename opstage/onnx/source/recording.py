"""Record a model with the ops of each of its nodes, in both modes as one program."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from typing import Any, final

from typing_extensions import override

from ...compilation import record
from ...imported.network import of_several
from ...interpreters.graph.notation import digest
from ...interpreters.interpreter import Variable
from ...ops.errors import OpstageError, UnsupportedError
from ...ops.protocol import Ops
from ...ops.spec import Spec
from ..graph import GraphNode, all_nodes
from ..model import OnnxModel
from ..run import GraphRun
from ..values import TensorValue
from .steps import WIDE, CallStep, ChoiceStep, KeepStep, Path, ProgramSteps, Step, same_static


def steps_of(model: OnnxModel) -> ProgramSteps:
    """Return the steps of a model, in evaluation and, if different, in training."""
    plain = _Recording(model, train=False)
    return _joined(plain, _Recording(model, train=True)) if _may_train(model) else plain.steps()


def _may_train(model: OnnxModel) -> bool:
    return any(node.op in ("BatchNormalization", "Dropout") for node in all_nodes(model.graph))


@final
@dataclass
class _NodeSpan:
    """The ops of a node: the range of their ordinals, and the slots of its outputs."""

    node: GraphNode
    ordinals: range
    given: dict[str, int]
    kept: dict[str, int]
    path: Path


@dataclass
class _WatchedRun(GraphRun):
    """A run that records the ops of each node of the outermost graph."""

    spans: list[_NodeSpan] = field(default_factory=list)

    @override
    def node(self, ops: Ops[Any], node: GraphNode) -> None:
        if isinstance(self.around, ChainMap):
            return super().node(ops, node)
        first, before = ops.cursor.ordinal, dict(self.moved)
        super().node(ops, node)
        given = {name: self.around[name] for name in node.outputs if name in self.around}
        slots = {name: _slot(value.ref) for name, value in given.items() if isinstance(value, TensorValue)}
        kept = {name: _slot(ref) for name, ref in self.moved.items() if before.get(name) is not ref}
        ordinals = range(first + 1, ops.cursor.ordinal + 1)
        self.spans.append(_NodeSpan(node, ordinals, slots, kept, ops.cursor.region.path))
        return None


def _slot(ref: Any) -> int:
    """Return the slot of the recorder's ref under the wrapping interpreters."""
    while type(ref) is not Variable:
        ref = ref.value
    return ref.slot


def specs_of(model: OnnxModel, train: bool) -> tuple[Spec, ...]:
    """Return the Specs of the inputs; in training, if batch normalisation computes a variance, for batches of 2 or
    more."""
    return of_several(model.network) if train else model.batch


class _Recording:
    """The recorded model with the ops of each of its nodes."""

    def __init__(self, model: OnnxModel, train: bool):
        state = model.state or {}
        self.spans: list[_NodeSpan] = []
        self.state_names = list(state)

        def program(ops: Any, params: Any, buffers: Any, *inputs: Any) -> Any:
            run = _WatchedRun(train, buffers, model.max_iterations)
            outputs, moved = model.run(ops, params, buffers, inputs, run)
            self.spans = run.spans
            return [outputs[name] for name in model.outputs], [moved.get(name, buffers[name]) for name in state]

        try:
            self.graph = record(program, model.params, state, *specs_of(model, train), options=WIDE)
        except OpstageError as error:
            raise UnsupportedError(
                f"{model.name} does not hold for every size, so it has no source: {error}"
            ) from error
        body, names = self.graph.body, [*sorted(model.params)]
        kinds = [*(("params", name) for name in names), *(("state", name) for name in sorted(state))]
        kinds += [("input", name) for name in model.inputs]
        kinds += [("step", "step")] * (len(body.inputs) - len(kinds))
        self.inputs = dict(zip(body.inputs, kinds))
        self.buffers = {name: slot for slot, (kind, name) in self.inputs.items() if kind == "state"}
        count = len(model.outputs)
        self.outputs = dict(zip(model.outputs, body.outputs[:count]))
        self.kept = dict(zip(state, body.outputs[count:]))

    def call(self, i: int) -> CallStep:
        equation = self.graph.body.equations[i]
        return CallStep(equation.primitive, equation.static, equation.inputs, equation.outputs, equation.region.path)

    def steps(self) -> ProgramSteps:
        """Return the steps of this recording only."""
        body = self.graph.body
        steps: list[Step] = [self.call(i) for i in range(len(body.equations))]
        steps += [KeepStep(n, slot, ()) for n, slot in self.kept.items() if slot != self.buffers[n]]
        constants = {constant.slot: constant.value for constant in body.constants}
        return ProgramSteps(self.inputs, constants, dict(enumerate(body.types)), steps, self.outputs)


def _joined(plain: _Recording, trained: _Recording) -> ProgramSteps:
    """Merge both recordings, node by node: shared steps appear once, all other nodes become choices.

    A tensor is a pair of slots, one in each recording: if dropout does nothing in evaluation, one of its slots there
    pairs with two in training.
    """
    joint = _Joint(plain, trained)
    spans = zip([*plain.spans, None], [*trained.spans, None])
    for (one, other), mine, theirs in zip(spans, _by_span(plain), _by_span(trained)):
        joint.node(one, other, [plain.call(i) for i in mine], [trained.call(i) for i in theirs])
    outputs = {}
    for name, slot in plain.outputs.items():
        pair = slot, trained.outputs[name]
        if pair not in joint.pairs:
            raise UnsupportedError(f"the output {name!r} is computed in another way in training")
        outputs[name] = joint.pairs[pair]
    joint.found.outputs = outputs
    return joint.found


def _by_span(recording: _Recording) -> list[list[int]]:
    """Return the equation numbers of each node, and last of those without a node."""
    owner = {ordinal: i for i, span in enumerate(recording.spans) for ordinal in span.ordinals}
    found: list[list[int]] = [[] for _ in range(len(recording.spans) + 1)]
    for i, equation in enumerate(recording.graph.body.equations):
        found[owner.get(equation.ordinal, -1)].append(i)
    return found


class _Joint:
    """Two recordings, merged node by node.

    pairs     the slot of each pair of slots
    first     for each recording, maps its own slots to merged ones
    """

    def __init__(self, plain: _Recording, trained: _Recording):
        self.found = plain.steps()
        self.found.steps = []
        self.pairs: dict[tuple[int, int], int] = {}
        self._last = trained.kept  # if nodes share a buffer, the last value counts
        self.first: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._types = plain.graph.body.types, trained.graph.body.types
        self._next = len(plain.graph.body.types)
        others = {kind: slot for slot, kind in trained.inputs.items()}
        for slot, kind in plain.inputs.items():
            self._pair(slot, others.pop(kind, None), slot)
        for kind, slot in others.items():  # the step number, which dropout reads
            self.found.inputs[self._alone(1, slot)] = kind
        known: dict[str, int] = {}
        for slot, array in self.found.constants.items():
            known.setdefault(digest(array), slot)
            self.first[0][slot] = slot
        self._constants = {slot: digest(array) for slot, array in self.found.constants.items()}
        self._others = {c.slot: digest(c.value) for c in trained.graph.body.constants}
        for constant in trained.graph.body.constants:
            slot = known.get(self._others[constant.slot], -1)
            if slot < 0:
                slot = self._alone(1, constant.slot)
                self.found.constants[slot] = constant.value
            self.first[1][constant.slot] = slot

    def node(
        self, one: _NodeSpan | None, other: _NodeSpan | None, mine: list[CallStep], theirs: list[CallStep]
    ) -> None:
        """Add a node's steps in both recordings."""
        path = one.path if one is not None else ()
        kept = {n: slot for n, slot in (other.kept if other is not None else {}).items() if self._last[n] == slot}
        if self._alike(mine, theirs) and all(name in one.kept for name in kept if one is not None):
            for name, slot in kept.items():
                pair = self.pairs.get((one.kept[name], slot)) if one is not None else None
                if pair is None:
                    raise UnsupportedError(f"the buffer {name!r} moves in another way in training")
                self.found.steps.append(KeepStep(name, pair, path))
            return
        evaluated = [self._renamed(0, call) for call in mine]
        trained = [self._renamed(1, call) for call in theirs]
        results = []
        for name, slot in (one.given if one is not None else {}).items():
            there = other.given.get(name) if other is not None else None
            if there is None or slot not in self.first[0] or there not in self.first[1]:
                continue
            if (slot, there) not in self.pairs:
                before = self.first[0][slot], self.first[1][there]
                results.append((self._pair(slot, there), *before))
        if not results and not kept and not (evaluated and trained):
            self.found.steps += [*evaluated, *trained]  # read by only one of them
            return
        moved = tuple(KeepStep(name, self.first[1][slot], path) for name, slot in kept.items())
        self.found.steps.append(ChoiceStep(tuple(evaluated), tuple(trained), tuple(results), moved, path))

    def _alike(self, mine: list[CallStep], theirs: list[CallStep]) -> bool:
        """Whether a node has the same steps in both; if so, add them."""
        if len(mine) != len(theirs):
            return False
        made: dict[tuple[int, int], int] = {}
        added = []
        for a, b in zip(mine, theirs):
            inputs = []
            for pair in zip(a.inputs, b.inputs):
                slot = made.get(pair, self.pairs.get(pair))
                if slot is None and pair[0] in self._constants:
                    slot = pair[0] if self._constants[pair[0]] == self._others.get(pair[1]) else None
                if slot is None:
                    return False
                inputs.append(slot)
            if a.primitive is not b.primitive or len(a.inputs) != len(b.inputs) or not same_static(a.static, b.static):
                return False
            made.update({pair: pair[0] for pair in zip(a.outputs, b.outputs)})
            added.append(CallStep(a.primitive, a.static, tuple(inputs), a.outputs, a.path))
        for (a_slot, b_slot), slot in made.items():
            self._pair(a_slot, b_slot, slot)
        self.found.steps += added
        return True

    def _renamed(self, side: int, call: CallStep) -> CallStep:
        first = self.first[side]
        outputs = tuple(self._alone(side, slot) for slot in call.outputs)
        return CallStep(call.primitive, call.static, tuple(first[slot] for slot in call.inputs), outputs, call.path)

    def _alone(self, side: int, slot: int) -> int:
        """Return a new slot for one that only one of the recordings has."""
        new, self._next = self._next, self._next + 1
        self.found.types[new] = self._types[side][slot]
        self.first[side][slot] = new
        return new

    def _pair(self, mine: int, theirs: int | None, slot: int | None = None) -> int:
        if slot is None:
            slot, self._next = self._next, self._next + 1
            self.found.types[slot] = self._types[0][mine]
        self.first[0].setdefault(mine, slot)
        if theirs is not None:
            self.first[1].setdefault(theirs, slot)
            self.pairs[mine, theirs] = slot
        return slot
