"""Any recorded graph as Python that people read: a function per region, one for equal regions, and loops over them."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

from ...interpreters.graph.graph import Graph
from ...ops.body import Body, ScanParameters, WhileParameters
from ...ops.errors import UnsupportedError
from ...ops.protocol import OPS
from ...ops.types import BOOL
from ...transforms.cond import get_branches
from .expressions import (
    LOCALS,
    Bracketed,
    CallTexts,
    Expression,
    LargeConstants,
    Prefixed,
    SourceExpressions,
    SourceNames,
    call,
    flat,
    given_names,
    identifier,
    is_small,
    lines,
    quoted,
    tuple_of,
)
from .steps import CallStep, ChoiceStep, MergedRecordings, ProgramSteps, gives, reads, simplified

# Loops and choices ----------------------------------------------------------------------------------------------------

STRUCTURAL = frozenset({"scan", "switch", "while_loop"})
"""Ops with bodies as static parameters."""


def structural_lines(scope: Scope, step: CallStep, indent: int) -> list[str]:
    """Return the functions of an op's bodies, and its call."""
    write = {"scan": _scan, "switch": _switch, "while_loop": _while}[step.primitive.name]
    return write(scope, step, indent)


def _scan(scope: Scope, step: CallStep, indent: int) -> list[str]:
    loop = ScanParameters(**dict(step.static))
    outer = [scope.tensor(slot) for slot in step.inputs]
    own = loop.carries + loop.entries
    names = _taken(scope, "carry", loop.carries), _taken(scope, "entry", loop.entries)
    inner = dict(zip(loop.body.inputs, [*names[0], *names[1], *outer[own:]]))
    name = scope.names.take("step")

    def returned(results: list[str]) -> Expression:
        return tuple_of([_nested(results[: loop.carries]), _nested(results[loop.carries :])])

    text = _function(scope, name, names, loop.body, loop.body.outputs, inner, indent, returned=returned)
    keywords: list[tuple[str, Expression]] = [("reverse", "True")] if loop.reverse else []
    if not loop.entries:
        keywords.append(("length", scope.around.expressions.static(loop.length)))
    words: list[Expression] = [name, _nested(outer[: loop.carries]), _nested(outer[loop.carries : own])]
    targets = [scope.target(slot, step, 2) for slot in step.outputs]
    ys = targets[loop.carries : len(loop.body.outputs)]
    left = f"{_targets(targets[: loop.carries])}, {_targets(ys)}"
    return [*text, *lines(f"{left} = ", call("ops.scan", words, keywords), indent)]


def _switch(scope: Scope, step: CallStep, indent: int) -> list[str]:
    index, *outer = [scope.tensor(slot) for slot in step.inputs]
    bodies = get_branches(step.static)
    chosen = scope.around.found.types[step.inputs[0]].dtype == BOOL
    text: list[str] = []
    names = []
    for i, body in enumerate(bodies):
        names.append(scope.names.take(("otherwise", "then")[i] if chosen else f"branch_{i}"))
        inner = dict(zip(body.inputs, outer))
        text += _function(scope, names[-1], (), body, body.outputs, inner, indent, after=bool(text))
    words: list[Expression] = [index, *reversed(names)] if chosen else [index, tuple_of(names)]
    targets = [scope.target(slot, step, len(step.outputs)) for slot in step.outputs]
    left = ", ".join(targets)
    return [*text, *lines(f"{left} = ", call(f"ops.{'cond' if chosen else 'switch'}", words), indent)]


def _while(scope: Scope, step: CallStep, indent: int) -> list[str]:
    loop = WhileParameters(**dict(step.static))
    carries = len(loop.body.outputs) - 1  # the last one counts the iterations, which the op does itself
    outer = [scope.tensor(slot) if i != carries else "" for i, slot in enumerate(step.inputs)]
    text: list[str] = []
    names = []
    for word, body in (("unfinished", loop.test), ("step", loop.body)):
        names.append(scope.names.take(word))
        carried = _taken(scope, "carry", carries)
        inner = dict(zip(body.inputs, [*carried, "", *outer[carries + 1 :]]))
        del inner[body.inputs[carries]]
        outputs = body.outputs[: carries if body is loop.body else 1]
        text += _function(scope, names[-1], (carried,), body, outputs, inner, indent, after=bool(text))
    keywords: list[tuple[str, Expression]] = []
    if loop.limit is not None:
        keywords.append(("max_iterations", scope.around.expressions.static(loop.limit)))
    words: list[Expression] = [*names, _nested(outer[:carries])]
    targets = [scope.target(slot, step, 2) for slot in step.outputs[:carries]]
    left = ", ".join(targets)
    return [*text, *lines(f"{left} = ", call("ops.while_loop", words, keywords), indent)]


def _taken(scope: Scope, word: str, count: int) -> list[str]:
    return [scope.names.take(word) for _ in range(count)]


def _nested(words: list[str]) -> Expression:
    if not words:
        return "None"
    return words[0] if len(words) == 1 else tuple_of(words)


def _function(
    scope: Scope,
    name: str,
    trees: Sequence[Sequence[str]],
    body: Body,
    outputs: Sequence[int],
    inner: Mapping[int, str],
    indent: int,
    *,
    after: bool = False,
    returned: Callable[[list[str]], Expression] = _nested,
) -> list[str]:
    """Return the lines of a function of trees of tensors.

    inner      the names of the body's inputs
    after      whether a function precedes it
    returned   what it returns of the expressions of its results
    """
    calls: list[Any] = [CallStep(e.primitive, e.static, e.inputs, e.outputs, ()) for e in body.equations]
    constants = {constant.slot: constant.value for constant in body.constants}
    wanted = {str(i): slot for i, slot in enumerate(outputs)}
    found = simplified(ProgramSteps({}, constants, dict(enumerate(body.types)), calls, wanted))
    arguments = [names[0] if len(names) == 1 else scope.names.take("tensors") for names in trees]
    outside = scope.lines, scope.slots, scope.around.found, scope.inner_reads
    scope.lines, scope.slots, scope.around.found, scope.inner_reads = [], dict(inner), found, {*body.read()}
    try:
        for each in found.steps:
            assert isinstance(each, CallStep)
            scope.call_step(each, indent + 4)
        results = [scope.tensor(slot) for slot in outputs]
        made = scope.lines
    finally:
        scope.lines, scope.slots, scope.around.found, scope.inner_reads = outside
    text = [""] if scope.lines and not scope.lines[-1].endswith(":") and not after else []
    text += lines(f"def {name}", call("", ["ops", *arguments]), indent, ":")
    used = {inner.get(slot) for slot in (*outputs, *[slot for each in found.steps for slot in reads(each)])}
    for names, argument in zip(trees, arguments):
        if len(names) > 1:
            left = ", ".join(name if name in used else "_" for name in names)
            text.append(f"{' ' * (indent + 4)}{left} = {argument}")
    return [*text, *made, *lines("return ", returned(results), indent + 4), ""]


def _targets(names: list[str]) -> str:
    if not names:
        return "_"
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


TREES = ("params", "state")
"""Arguments that are trees of named tensors; functions of regions take the part under their common prefix."""


@final
@dataclass(eq=False)
class SourceBlock:
    """A region: its ops and the regions within it, the slots that it reads and gives, and the prefix of its weights."""

    name: str
    path: tuple[Any, ...]
    first: int = 0
    last: int = 0
    members: list[Any] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    prefix: str = ""

    def steps(self) -> Iterator[CallStep]:
        """Yield all ops in it."""
        for member in self.members:
            yield from member.steps() if isinstance(member, SourceBlock) else [member]

    def only(self) -> CallStep | None:
        """Return the op of a region of one op with one result, or None."""
        steps = list(self.steps())
        if len(steps) > 1 or len(self.results) != 1 or not isinstance(steps[0], CallStep):
            return None
        return None if steps[0].primitive.name in STRUCTURAL else steps[0]


@final
@dataclass(frozen=True)
class BlockFunction:
    """The function of a block: its name, and which trees and sizes it takes."""

    name: str
    trees: tuple[str, ...]
    sizes: tuple[str, ...]


class PythonWriter:
    """Writes the functions of a graph."""

    def __init__(self, graph: Graph, trained: Graph | None, dims: Mapping[str, str], arguments: Mapping[str, str]):
        body = graph.body
        inputs = {slot: name.partition(".")[::2] for slot, name in zip(body.inputs, graph.input_names)}
        self.found = simplified(MergedRecordings(graph, trained or graph).found)
        self.found.inputs.update(inputs)
        inputs = self.found.inputs
        self.arguments = arguments
        self.renamed = given_names(self.found)
        inputs = self.found.inputs
        self.inputs = {slot: at for slot, at in inputs.items() if at[0] in TREES}
        self.expressions = SourceExpressions(dims)
        self.constants = LargeConstants([name for _, name in inputs.values()])
        self.users: dict[int, list[int]] = {}
        self.texts: dict[Any, BlockFunction] = {}
        self.functions: list[list[str]] = []
        self.names = SourceNames(["below", *arguments.values(), *dims.values(), *LOCALS])
        for i, step in enumerate(self.found.steps):
            for slot in reads(step):
                self.users.setdefault(slot, []).append(i)
        for slot in self.found.outputs.values():
            self.users.setdefault(slot, []).append(len(self.found.steps))
        self.root = self.tree()

    def program(self, trees: Sequence[str]) -> list[str]:
        """Return the function of the whole program, of trees and the other arguments."""
        scope = Scope(self, self.root)
        scope.members()
        found = self.found
        axes = [
            (name, axis, str(d))
            for s, name in scope.slots.items()
            if s in found.inputs
            for axis, d in enumerate(found.types[s].shape)
        ]
        for d, size in self.expressions.dims.items():
            if size in self.expressions.sizes:
                scope.lines.insert(
                    0, next(f"    {size} = {name}.shape[{axis}]" for name, axis, each in axes if each == d)
                )
        given: dict[str, list[Expression]] = {"outputs": [], "state": []}
        for name, slot in found.outputs.items():
            kind, _, name = name.partition(".")
            name = self.renamed.get(name, name) if kind == "state" else name
            given[kind].append(Prefixed(f"{quoted(name)}: ", scope.tensor(slot)))
        results: list[Expression] = [Bracketed("{", tuple(given[kind]), "}") for kind in ("outputs", *trees[1:])]
        head = call("", ["ops", *trees, *self.arguments.values(), "*", "train=False"])
        returned = results[0] if len(results) == 1 else tuple_of(results)
        return [*lines("def program", head, 0, ":"), *scope.lines, *lines("return ", returned, 4)]

    def tree(self) -> SourceBlock:
        """Return the regions as a tree. A region that is entered again at once is one: nodes between may give no op."""
        root = SourceBlock("program", (), last=len(self.found.steps))
        for i, step in enumerate(self.found.steps):
            block = root
            for depth, (name, _) in enumerate(step.path, start=1):
                last = block.members[-1] if block.members else None
                if not isinstance(last, SourceBlock) or last.name != name:
                    last = SourceBlock(name, step.path[:depth], first=i)
                    block.members.append(last)
                block = last
                block.last = i
            block.members.append(step)
        self.describe(root)
        return root

    def describe(self, block: SourceBlock) -> None:
        """Set what a block and those within it read and give."""
        given = {slot for step in block.steps() for slot in gives(step)}
        read = dict.fromkeys(slot for step in block.steps() for slot in reads(step))
        known = (
            self.inputs.keys()
            | self.found.constants.keys()
            | {s for s, at in self.found.inputs.items() if at[0] == "step"}
        )
        block.arguments = [slot for slot in read if slot not in given and slot not in known]
        used = [slot for slot in given if any(not block.first <= at <= block.last for at in self.users.get(slot, ()))]
        block.results = sorted(used)
        weights = [self.inputs[slot][1] for slot in read if slot in self.inputs]
        block.prefix = os.path.commonprefix(weights).rpartition(".")[0] if block.path else ""  # noqa: RUF071
        for member in block.members:
            if isinstance(member, SourceBlock):
                self.describe(member)

    def function(self, block: SourceBlock) -> BlockFunction:
        """Return the function of a region, the same for all with the same text."""
        outer, self.expressions.sizes = self.expressions.sizes, set()
        scope = Scope(self, block)
        scope.members()
        trains = ("train",) if scope.trains else ()
        scope.lines += lines("return ", ", ".join(scope.tensor(slot) for slot in block.results), 4)
        sizes = tuple(sorted(self.expressions.sizes))
        self.expressions.sizes = outer | set(sizes)
        trees = tuple(tree for tree in TREES if tree in scope.trees)
        head = ["ops", *trees, *[scope.slots[slot] for slot in block.arguments], *sizes, *trains]
        key = (tuple(head), tuple(scope.lines))
        if key not in self.texts:
            base = identifier(re.sub(r"[._]?\d+$", "", block.name), "block").lower()
            name = self.names.take(f"{base}_block" if base in OPS else base)
            self.texts[key] = BlockFunction(name, trees, (*sizes, *trains))
            self.functions.append([*lines(f"def {name}", call("", head), 0, ":"), *scope.lines])
        return self.texts[key]


class Scope:
    """The body of a function while it is written."""

    def __init__(self, around: PythonWriter, block: SourceBlock):
        self.around = around
        self.block = block
        self.names = SourceNames(around.expressions.dims.values())
        self.texts = CallTexts(around.expressions, self)
        if block.path:
            letters = [*"xyzuvw", *[f"x{i}" for i in range(6, len(block.arguments))]]
            self.slots = {slot: self.names.take(name) for slot, name in zip(block.arguments, letters)}
        else:
            known = around.arguments
            self.slots = {s: self.names.take(known[at[0]]) for s, at in around.found.inputs.items() if at[0] in known}
        self.lines: list[str] = []
        self.trees: set[str] = set()
        self.trains = False
        self.inner_reads: set[int] = set()

    def tensor(self, slot: int) -> str:
        """Return an expression for a tensor."""
        if slot in self.slots:
            return self.slots[slot]
        if slot in self.around.found.constants:
            array = self.around.found.constants[slot]
            if is_small(array):
                return flat(self.around.expressions.constant(array))
            return f"ops.const({self.around.constants.name(array).upper()})"
        if slot not in self.around.inputs:
            raise UnsupportedError("a tensor of another region has no text here")
        tree, name = self.around.inputs[slot]
        self.trees.add(tree)
        return f"{tree}[{quoted(name.removeprefix(f'{self.block.prefix}.'))}]"

    def target(self, slot: int, step: CallStep, among: int) -> str:
        """Return the name of a result; `_` for an unused one of several."""
        if slot not in self.slots:
            if among > 1 and not self.around.users.get(slot) and slot not in self.inner_reads:
                return "_"
            self.slots[slot] = self.names.take(identifier(step.primitive.name))
        return self.slots[slot]

    def call_step(self, step: CallStep, indent: int = 4) -> None:
        """Write one op."""
        if step.primitive.name in STRUCTURAL:
            self.lines += structural_lines(self, step, indent)
            return
        text = self.texts.expression(step)
        visible = step.outputs[: len(step.primitive.outputs)]
        self.lines += lines(f"{', '.join(self.target(slot, step, len(visible)) for slot in visible)} = ", text, indent)

    def members(self) -> None:
        """Write the ops and regions in order."""
        members, i = self.block.members, 0
        while i < len(members):
            if isinstance(members[i], SourceBlock) and (only := members[i].only()) is not None:
                text = self.inline(members[i], only)
                slot = members[i].results[0]
                self.slots[slot] = self.names.take("h")
                self.lines += lines(f"{self.slots[slot]} = ", text, 4)
                i += 1
            elif isinstance(members[i], SourceBlock):
                run = self.run(members[i:])
                self.regions(run)
                i += len(run)
            else:
                self.choice(members[i]) if isinstance(members[i], ChoiceStep) else self.call_step(members[i])
                i += 1

    def choice(self, step: ChoiceStep) -> None:
        """Write the ops of both modes beside each other."""
        self.trains = True
        targets = {slot: self.names.take(self.base(step, mine, theirs)) for slot, mine, theirs in step.results}
        for word, side, calls in (("if train:", 2, step.trained), ("else:", 1, step.evaluated)):
            before = len(self.lines)
            self.lines.append(f"    {word}")
            own = {slot for each in calls for slot in each.outputs}
            self.slots.update({result[side]: targets[result[0]] for result in step.results if result[side] in own})
            self.inner_reads = {slot for each in calls for slot in reads(each)}
            for each in calls:
                self.call_step(each, 8)
            for result in step.results:
                if result[side] not in own:
                    self.lines += lines(f"{targets[result[0]]} = ", self.tensor(result[side]), 8)
            if len(self.lines) == before + 1:
                self.lines[before:] = ["        pass"] if side == 2 else []
        self.slots.update(targets)

    @staticmethod
    def base(step: ChoiceStep, mine: int, theirs: int) -> str:
        """Return a name for what both modes compute."""
        calls = [each for each in (*step.evaluated, *step.trained) if {mine, theirs} & {*each.outputs}]
        return calls[0].primitive.name.removesuffix("_eval") if calls else "x"

    def inline(self, block: SourceBlock, step: CallStep) -> Expression:
        """Return the call of a region of one op."""
        member = block.members[0]
        inside = self.inline(member, step) if isinstance(member, SourceBlock) else self.texts.expression(step)
        return call("ops.region", [quoted(block.name), Prefixed("lambda ops: ", inside)])

    def run(self, members: Sequence[Any]) -> list[SourceBlock]:
        """Return the regions, from the first on, that form one loop: each reads the results of the one before it."""
        found = [members[0]]
        for before, after in pairwise(members):
            if (
                not isinstance(after, SourceBlock)
                or after.only() is not None
                or self.around.function(after) != self.around.function(members[0])
            ):
                break
            own = set(before.results)
            users = [at for slot in own for at in self.around.users.get(slot, ())]
            first = [slot in own for slot in after.arguments]
            alike = all(a == b for a, b, carried in zip(before.arguments, after.arguments, first) if not carried)
            inside = all(after.first <= at <= after.last for at in users)
            if not own or not inside or len(own) > 1 or not own <= set(after.arguments) or not alike:
                break
            found.append(after)
            if counted([self.words(block) for block in found]) is None:
                found.pop()
                break
        return found

    def words(self, block: SourceBlock) -> tuple[str, ...]:
        """Return the name of a region and the prefix of its weights under that of this function."""
        return quoted(block.name), block.prefix.removeprefix(self.block.prefix).removeprefix(".")

    def regions(self, run: Sequence[SourceBlock]) -> None:
        """Write the call of a region, or a loop over several."""
        first, last = run[0], run[-1]
        written = self.around.function(first)
        head, (name, prefix) = counted([self.words(block) for block in run]) or ("", self.words(first))
        name = f"f{name}" if len(run) > 1 and "{i}" in name else name
        given = [self.tensor(slot) for slot in first.arguments]
        if len(run) > 1:
            carried = next(j for j, slot in enumerate(run[1].arguments) if slot in first.results)
            result = self.names.take("h")
            self.lines += [f"    {result} = {given[carried]}", f"    for {head}:"]
            given[carried] = result
            targets = [result]
        else:
            targets = [self.names.take("h") for _ in first.results]
        self.trees |= set(written.trees)
        under = quoted(f"{prefix}.")
        under = f"f{under}" if len(run) > 1 and "{i}" in prefix else under
        trees = [f"below({tree}, {under})" if prefix else tree for tree in written.trees]
        text: Expression = call("ops.region", [name, written.name, *trees, *given, *written.sizes])
        self.trains = self.trains or "train" in written.sizes
        self.around.expressions.sizes.update({*written.sizes} - {"train"})
        self.lines += lines(f"{', '.join(targets)} = ", text, 8 if len(run) > 1 else 4)
        self.slots.update(zip(last.results, targets))


def counted(texts: Sequence[tuple[str, ...]]) -> tuple[str, tuple[str, ...]] | None:
    """Return the head of a loop over texts that differ in one number, and the texts with `{i}`; None for others."""
    split = [re.split(r"(\d+)", "\0".join(words)) for words in texts]
    odd = any(re.search(r"[{}\\]", word) for words in texts for word in words)
    if odd or len(texts) < 2 or len({len(parts) for parts in split}) > 1:
        return None
    differ = [j for j, parts in enumerate(zip(*split)) if len(set(parts)) > 1]
    numbers = [[parts[j] for j in differ] for parts in split]
    if not differ or any(len(set(each)) > 1 or not each[0].isdigit() for each in numbers):
        return None
    first, last = int(numbers[0][0]), int(numbers[-1][0])
    if [int(each[0]) for each in numbers] != list(range(first, last + 1)):
        return None
    whole = "".join("{i}" if j in differ else part for j, part in enumerate(split[0]))
    return f"i in range({f'{first}, ' if first else ''}{last + 1})", tuple(whole.split("\0"))
