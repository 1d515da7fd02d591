"""Regions as functions: one for all regions with the same computation, and loops over consecutive ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from ...ops.protocol import OPS
from .blocks import RegionBlock, draws_in
from .constants import LargeConstants
from .expressions import SourceExpressions
from .layout import call, lines
from .names import SourceNames, identifier
from .scope import LOCALS, FunctionBody, FunctionScope, first_arguments, is_prefixed
from .steps import Path, ProgramSteps, Step, gives, reads


class Functions:
    """The functions of a program. `texts` are those of regions, in an order in which each calls only earlier ones."""

    def __init__(
        self,
        found: ProgramSteps,
        expressions: SourceExpressions,
        constants: LargeConstants,
        input_names: Mapping[str, str],
    ):
        self.found = found
        self.expressions = expressions
        self.constants = constants
        self.input_names = input_names
        self.texts: list[list[str]] = []
        self._names = SourceNames([*input_names.values(), *expressions.dims.values(), *LOCALS])
        self._keys: dict[Any, int] = {}
        self._bodies: dict[int, FunctionBody] = {}
        self._counts: Counter[int] = Counter()
        self._made: dict[Any, str] = {}
        self._written: dict[Any, FunctionBody] = {}
        self._number = count()
        self._root = RegionBlock("", ())
        self._fill()
        self.users = self._all_users()
        self._describe(self._root)

    def program(self) -> FunctionBody:
        """Return the body of the whole program; fills `texts`."""
        for member in self._root.members:
            if isinstance(member, RegionBlock):
                self._key(member)
        return self._rendered(self._root, abstract=False, final=True)

    # The tree ---------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        known: dict[Path, RegionBlock] = {(): self._root}
        draws = any(draws_in(step) for step in self.found.steps)  # draws depend on the region that they are in
        for i, step in enumerate(self.found.steps):
            block = self._root
            for depth in range(len(step.path)):
                key = step.path[: depth + 1]
                if key not in known:
                    before = block.members[-1] if block.members else None
                    if not draws and isinstance(before, RegionBlock) and before.name == key[-1][0]:
                        known[key] = before  # no other region lies between them
                    else:
                        known[key] = RegionBlock(key[-1][0], key, first=i)
                        block.members.append(known[key])
                block = known[key]
                block.last = i
            block.members.append(step)
        self._root.last = len(self.found.steps) - 1

    def _all_users(self) -> dict[int, list[int]]:
        users: dict[int, list[int]] = {}
        for i, step in enumerate(self.found.steps):
            for slot in reads(step):
                users.setdefault(slot, []).append(i)
        for slot in self.found.outputs.values():
            users.setdefault(slot, []).append(len(self.found.steps))
        return users

    def _describe(self, block: RegionBlock) -> None:
        steps = block.steps()
        given = [slot for step in steps for slot in gives(step)]
        inside = set(given)
        outside = dict.fromkeys(slot for step in steps for slot in reads(step) if slot not in inside)
        block.prefix = self._prefix(block, list(outside), steps)
        block.arguments = tuple(slot for slot in outside if not self._is_global(slot, block.prefix))
        block.results = tuple(
            slot for slot in given if any(not block.first <= user <= block.last for user in self.users.get(slot, ()))
        )
        for member in block.members:
            if isinstance(member, RegionBlock):
                self._describe(member)

    def _is_global(self, slot: int, prefix: str | None) -> bool:
        """Whether a function with that prefix can reach the tensor without an argument."""
        if slot in self.found.constants:
            return True
        kind, name = self.found.inputs.get(slot, ("", ""))
        if kind == "state":
            return True
        return kind == "params" and prefix is not None and name.startswith(f"{prefix}.")

    def _prefix(self, block: RegionBlock, outside: Sequence[int], steps: Sequence[Step]) -> str | None:
        """Return the prefix of the region's parameter names: its own path if they contain it, else the common one."""
        given = [self.found.inputs[slot] for slot in outside if slot in self.found.inputs]
        names = [name for kind, name in given if kind in ("params", "state")]
        dotted = ".".join(name for name, _ in block.path)
        found: Counter[str] = Counter()
        for name in names:
            start = f".{name}".find(f".{dotted}.")
            if dotted and start >= 0:
                found[name[: start + len(dotted)]] += 1
        if found:
            return found.most_common(1)[0][0]
        parts = [name.split(".")[:-1] for name in names]
        shared: list[str] = []
        for each in zip(*parts):
            if len(set(each)) > 1:
                break
            shared.append(each[0])
        return ".".join(shared) or None

    # Text -------------------------------------------------------------------------------------------------------------

    def _key(self, block: RegionBlock) -> None:
        """Number a region, and those within it, by what they compute."""
        for member in block.members:
            if isinstance(member, RegionBlock):
                self._key(member)
        body = self._rendered(block, abstract=True, final=False)
        text = (body.lines, body.arguments, body.sizes, block.prefix is None)
        if text not in self._keys:
            self._keys[text] = next(self._number)
        block.key = self._keys[text]
        self._bodies.setdefault(block.key, body)
        self._counts[block.key] += 1

    def function(self, block: RegionBlock, scope: FunctionScope) -> tuple[str, FunctionBody, bool]:
        """Return the name of a region's function, its body, and whether it has a prefix argument."""
        if not scope.final:
            body = self._bodies[block.key]
            return f"f{block.key}", body, block.prefix is not None and is_prefixed(body)
        abstract = self._counts[block.key] > 1
        made = (block.key, None if abstract else block.path)
        body = self._rendered(block, abstract=abstract, final=True) if made not in self._made else self._written[made]
        if made not in self._made:
            self._made[made] = self._names.take(self._called(block))
            self._written[made] = body
            self.texts.append(self._definition(self._made[made], block, body, abstract))
        return self._made[made], body, abstract and is_prefixed(body)

    def _called(self, block: RegionBlock) -> str:
        name = identifier(re.sub(r"[._]?\d+$", "", block.name), "block").lower()
        return f"{name}_block" if name in OPS else name

    def _definition(self, name: str, block: RegionBlock, body: FunctionBody, abstract: bool) -> list[str]:
        head = [*first_arguments(body, abstract and is_prefixed(body)), *body.arguments, *body.sizes]
        head += ["train"] if "train" in body.needs else []
        return [*lines(f"def {name}", call("", head), 0, ":"), *body.lines]

    def _rendered(self, block: RegionBlock, *, abstract: bool, final: bool) -> FunctionBody:
        outer, self.expressions.sizes = self.expressions.sizes, set()
        try:
            scope = FunctionScope(self, block, abstract and block.prefix is not None, final)
            text = scope.body()
            sizes = tuple(sorted(self.expressions.sizes))
        finally:
            self.expressions.sizes = outer
        return FunctionBody(tuple(text), tuple(scope.argument_names), sizes, frozenset(scope.needs), scope.results)
