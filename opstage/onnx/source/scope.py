"""The body of one function, written step by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

from ...ops.errors import UnsupportedError
from .blocks import Member, RegionBlock
from .bodies import STRUCTURAL, structural_lines
from .calls import CallTexts
from .constants import is_small
from .expressions import quoted
from .layout import Expression, Prefixed, call, flat, lines
from .loops import counted_loop
from .names import SourceNames, identifier
from .steps import CallStep, ChoiceStep, KeepStep, reads

if TYPE_CHECKING:
    from .functions import Functions

_LETTERS = ("x", "y", "z", "u", "v", "w")
_RESULT = "h"
LOCALS = (
    *_LETTERS,
    _RESULT,
    "weight",
    "dropout",
    "step",
    "carry",
    "entry",
    "tensors",
    "then",
    "otherwise",
    "unfinished",
)
"""Names of tensors, in addition to names of ops; no function may have one of them."""


@final
@dataclass(frozen=True)
class FunctionBody:
    """The text of a region's function: its lines, and its arguments other than tensors."""

    lines: tuple[str, ...]
    arguments: tuple[str, ...]
    sizes: tuple[str, ...]
    needs: frozenset[str]
    results: Mapping[str, str]


def is_prefixed(body: FunctionBody) -> bool:
    """Whether a function has an argument `prefix`."""
    return "prefix" in body.needs


def first_arguments(body: FunctionBody, prefixed: bool) -> list[str]:
    """Return the arguments of a function before its tensors."""
    found = ["ops"]
    found += [name for name in ("params", "state", "moved") if name in body.needs]
    return [*found, "prefix"] if prefixed else found


class FunctionScope:
    """The body of a function while it is written.

    abstract   whether parameter names depend on its argument `prefix`
    needs      which of params, state, moved, prefix and train it needs
    """

    def __init__(self, around: Functions, block: RegionBlock, abstract: bool, final: bool):
        self.around = around
        self.block = block
        self.prefix = block.prefix if abstract else None
        self.final = final
        self.needs: set[str] = set()
        self.texts = CallTexts(around.expressions, self)
        root = not block.path
        taken = [*around.expressions.dims.values(), *(around.input_names.values() if root else [])]
        self.names = SourceNames(taken)
        self.slots: dict[int, str] = {}
        self.argument_names: list[str] = []
        self.lines: list[str] = []
        self.last = 0
        self.results: dict[str, str] = {}
        self.inner_reads: set[int] = set()
        for slot, (kind, name) in around.found.inputs.items():
            if kind == "input" and root:
                self.slots[slot] = around.input_names[name]
        letters = [letter for letter in _LETTERS if letter not in self.names]
        for slot in () if root else block.arguments:
            if slot not in self.slots:
                weight = around.found.inputs.get(slot, ("", ""))[0] == "params"
                base = "weight" if weight else letters.pop(0) if letters else "x"
                self.slots[slot] = self.names.take(base)
            self.argument_names.append(self.slots[slot])

    def body(self) -> list[str]:
        """Return the lines of the function."""
        self.members(self.block.members)
        if not self.block.path:
            self.results = {name: self.tensor(slot) for name, slot in self.around.found.outputs.items()}
        else:
            names = [self.tensor(slot) for slot in self.block.results]
            start = f"    {names[0]} = " if len(names) == 1 else ""
            if start and self.lines[self.last].startswith(start):
                self.lines[self.last] = self.lines[self.last].replace(start, "    return ", 1)
            else:
                self.lines += lines("return ", _several(names), 4)
        return self.lines

    # Tensors ----------------------------------------------------------------------------------------------------------

    def tensor(self, slot: int) -> str:
        """Return an expression for a tensor."""
        if slot in self.slots:
            return self.slots[slot]
        found = self.around.found
        if slot in found.constants:
            array = found.constants[slot]
            if is_small(array):
                return flat(self.around.expressions.constant(array))
            return f"ops.const({self.around.constants.name(array).upper()})"
        if slot in found.inputs:
            kind, name = found.inputs[slot]
            if kind in ("params", "state"):
                self.needs.add(kind)
                return f"{kind}[{self.name_of(name)}]"
        raise UnsupportedError("a tensor that only training computes is read by another node; it has no text here")

    def name_of(self, name: str) -> str:
        """Return the name of a parameter as an expression."""
        if self.prefix is not None and name.startswith(f"{self.prefix}."):
            self.needs.add("prefix")
            return self.joined(name)
        return quoted(name)

    def joined(self, name: str) -> str:
        """Return the expression of a name that begins with this function's prefix."""
        rest = name[len(self.prefix or "") :]
        if re.fullmatch(r"[\w.:/\- ]*", rest, re.ASCII):
            return f'f"{{prefix}}{rest}"' if rest else "prefix"
        return f"prefix + {quoted(rest)}"

    def new(self, slot: int, base: str) -> str:
        """Return a name for a new tensor."""
        name = self.slots[slot] = self.names.take(identifier(base))
        return name

    # Members ----------------------------------------------------------------------------------------------------------

    def members(self, members: Sequence[Member]) -> None:
        i = 0
        while i < len(members):
            run = self.around_run(members, i)
            if run > 1:
                self.loop([m for m in members[i : i + run] if isinstance(m, RegionBlock)])
            else:
                self.member(members[i])
            i += max(run, 1)

    def member(self, member: Member) -> None:
        self.last = len(self.lines)
        if isinstance(member, RegionBlock):
            self.region(member)
        elif isinstance(member, CallStep):
            self.call_step(member, 4)
        elif isinstance(member, KeepStep):
            self.keep(member, 4)
        else:
            self.choice(member)

    def call_step(self, step: CallStep, indent: int) -> None:
        if step.primitive.name in STRUCTURAL:
            self.lines += structural_lines(self, step, indent)
            return
        text = self.texts.expression(step)
        visible = step.outputs[: len(step.primitive.outputs)]
        self.lines += lines(f"{', '.join(self.target(slot, step, len(visible)) for slot in visible)} = ", text, indent)

    def target(self, slot: int, step: CallStep, among: int) -> str:
        """Return the name of a result; `_` for an unused one of several."""
        if slot in self.slots:
            return self.slots[slot]
        if among > 1 and not self.is_read(slot):
            return "_"
        return self.new(slot, step.primitive.name)

    def is_read(self, slot: int) -> bool:
        """Whether a later step reads a tensor."""
        return bool(self.around.users.get(slot)) or slot in self.inner_reads

    def keep(self, step: KeepStep, indent: int) -> None:
        self.needs.add("moved")
        self.lines += lines(f"moved[{self.name_of(step.name)}] = ", self.tensor(step.slot), indent)

    def choice(self, step: ChoiceStep) -> None:
        self.needs.add("train")
        targets = {slot: self.new(slot, self._base(step, mine, theirs)) for slot, mine, theirs in step.results}
        for word, i, calls in (("if train:", 2, step.trained), ("else:", 1, step.evaluated)):
            before = len(self.lines)
            self.lines.append(f"    {word}")
            own = {slot for each in calls for slot in each.outputs}
            self.slots.update({result[i]: targets[result[0]] for result in step.results if result[i] in own})
            self.inner_reads = {slot for each in calls for slot in reads(each)}
            for each in calls:
                self.call_step(each, 8)
            for result in step.results:
                if result[i] not in own:
                    self.lines += lines(f"{targets[result[0]]} = ", self.tensor(result[i]), 8)
            for kept in step.kept if i == 2 else ():
                self.keep(kept, 8)
            if len(self.lines) == before + 1:
                self.lines.pop()
                if i == 2:
                    raise UnsupportedError("a node that training leaves out has no text here")

    @staticmethod
    def _base(step: ChoiceStep, mine: int, theirs: int) -> str:
        for calls, slot in ((step.evaluated, mine), (step.trained, theirs)):
            for each in calls:
                if slot in each.outputs and each.primitive.name not in ("mul", "select"):
                    return each.primitive.name.removesuffix("_eval")
        return "dropout" if not step.evaluated else "x"

    # Regions ----------------------------------------------------------------------------------------------------------

    def region(self, block: RegionBlock) -> None:
        inline = self.inline(block)
        if inline is not None:
            slot, base, text = inline
            self.lines += lines(f"{self.new(slot, base)} = ", text, 4)
            return
        text = self.called(
            block, quoted(block.name), self.prefix_text(block), [self.tensor(s) for s in block.arguments]
        )
        names = [self.new(slot, _RESULT) for slot in block.results]
        self.lines += lines(f"{', '.join(names)} = " if names else "", text, 4)

    def inline(self, block: RegionBlock) -> tuple[int, str, Expression] | None:
        """Return a region of one op as an expression: its slot, a name for it, and the text."""
        if len(block.members) != 1 or len(block.results) != 1:
            return None
        (member,) = block.members
        if isinstance(member, RegionBlock):
            found = self.inline(member)
            if found is None:
                return None
            slot, base, inside = found
        elif (
            isinstance(member, CallStep)
            and len(member.primitive.outputs) == 1
            and member.primitive.name not in STRUCTURAL
        ):
            slot, base, inside = block.results[0], member.primitive.name, self.texts.expression(member)
        else:
            return None
        text = call("ops.region", [quoted(block.name), Prefixed("lambda ops: ", inside)])
        return slot, base, text

    def called(self, block: RegionBlock, name: str, prefix: str, tensors: Sequence[str]) -> Expression:
        """Return a call of a region's function."""
        function, body, prefixed = self.around.function(block, self)
        self.needs |= body.needs - {"prefix"}
        self.around.expressions.sizes.update(body.sizes)
        first = first_arguments(body, False)[1:]
        words = [name, function, *first, *([prefix] if prefixed else []), *tensors, *body.sizes]
        return call("ops.region", [*words, *(["train"] if "train" in body.needs else [])])

    def prefix_text(self, block: RegionBlock) -> str:
        """Return the prefix of a region as an expression in this function."""
        if block.prefix is None:
            return "None"
        if self.prefix is not None and (block.prefix == self.prefix or block.prefix.startswith(f"{self.prefix}.")):
            self.needs.add("prefix")
            return self.joined(block.prefix)
        return quoted(block.prefix)

    # Loops ------------------------------------------------------------------------------------------------------------

    def around_run(self, members: Sequence[Member], i: int) -> int:
        """Return how many regions, from the i-th on, form one loop."""
        first = members[i]
        if not isinstance(first, RegionBlock) or not first.results or self.inline(first) is not None:
            return 1
        run = [first]
        for member in members[i + 1 :]:
            if not isinstance(member, RegionBlock) or member.key != first.key:
                break
            run.append(member)
        while len(run) > 1 and self._carried(run) is None:
            run.pop()
        return len(run) if len(run) > 1 and counted_loop(run) is not None else 1

    def _carried(self, run: Sequence[RegionBlock]) -> dict[int, int] | None:
        """Map each argument to the result of the previous region that it is; None if the regions form no loop."""
        carried: dict[int, int] = {}
        for before, after in pairwise(run):
            here = {j: before.results.index(slot) for j, slot in enumerate(after.arguments) if slot in before.results}
            if before is run[0]:
                carried = here
            if here != carried or {*here.values()} != {*range(len(before.results))}:
                return None
            users = [user for slot in before.results for user in self.around.users.get(slot, ())]
            if any(not after.first <= user <= after.last for user in users):
                return None
            for j, (a, b) in enumerate(zip(before.arguments, after.arguments)):
                if j not in carried and a != b:
                    return None
        return carried

    def loop(self, run: Sequence[RegionBlock]) -> None:
        carried, counted = self._carried(run), counted_loop(run)
        assert carried is not None and counted is not None
        head, name, prefix = counted
        if self.prefix is not None and prefix is not None:
            self.needs.add("prefix")
        first, last = run[0], run[-1]
        words = [self.tensor(slot) for slot in first.arguments]
        targets: list[str] = [""] * len(first.results)
        for j, m in carried.items():
            if not targets[m] and self._is_spent(first.arguments[j], first):
                targets[m] = words[j]
            elif not targets[m]:
                targets[m] = self.names.take(_RESULT)
                self.lines.append(f"    {targets[m]} = {words[j]}")
            words[j] = targets[m]
        self.last = len(self.lines)
        self.lines.append(f"    for {head}:")
        text = self.called(first, name, self._loop_prefix(first, prefix), words)
        self.lines += lines(f"{', '.join(targets)} = ", text, 8)
        for target, slot in zip(targets, last.results):
            self.slots[slot] = target

    def _is_spent(self, slot: int, first: RegionBlock) -> bool:
        """Whether a tensor of this function is last read by the first region of a loop."""
        name = self.slots.get(slot, "")
        if slot in self.around.found.inputs or slot in self.block.arguments or not name.startswith(_RESULT):
            return False
        return all(user <= first.last for user in self.around.users.get(slot, ()))

    def _loop_prefix(self, first: RegionBlock, prefix: str | None) -> str:
        if prefix is None or first.prefix is None:
            return self.prefix_text(first)
        if self.prefix is not None and prefix.startswith(f"{self.prefix}."):
            self.needs.add("prefix")
            return f'f"{{prefix}}{prefix[len(self.prefix) :]}"'
        return f'f"{prefix}"' if "{" in prefix else quoted(prefix)


def _several(names: Sequence[str]) -> Expression:
    return names[0] if len(names) == 1 else ", ".join(names)
