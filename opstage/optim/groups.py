"""Optimizers with parameter groups: other hyperparameters, or another optimizer, for parameters that match a
pattern."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeVar, final

from typing_extensions import override

from ..ops.errors import ProgramError, UsageError, nearest
from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import called_by_users
from ..ops.trees import show_path
from ..ops.types import DType, Shape, show_shape
from ..pages import aligned
from .hyperparameters import require_nonnegative
from .optimizer import Optimizer, Scalars, Slot, Slots, peak, scaled_rate

# Rules by path: values for the parameters that match a pattern ------------------------------------------------------
#
# A pattern is one or more alternatives separated by `|`. In each, `*` matches any characters, dots too, `?` one
# character, and `[ab]` one of those: `*.bias|*norm*`. It matches a parameter if it matches any of its paths.

T = TypeVar("T")
_OPTIMIZER = "the optimizer"
_SCALE = "lr_scale"
_WHAT = "optimizer group"
_SPECIAL = re.compile(r"[*?|\[]")


class Ruled(NamedTuple):
    """The values by key that the rules set for one parameter, and the patterns that match it, in order."""

    values: dict[str, Any]
    patterns: tuple[str, ...]


def is_pattern(text: Any) -> bool:
    """Return whether `text` is a string with a special character of patterns."""
    return isinstance(text, str) and _SPECIAL.search(text) is not None


def apply_rules(
    what: str,
    rules: Sequence[tuple[str, Mapping[str, Any]]],
    places: Sequence[tuple[str, ...]],
    *,
    prefixes: bool = False,
) -> list[Ruled]:
    """Return the values that `rules`, patterns with values by key, set for each of the parameters with these paths.

    With `prefixes` a rule without special characters also matches every path below it: `encoder` is `encoder.*`.

    Raises UsageError for a rule that matches no parameter, and for two that set different values for one parameter.
    """
    found = [Ruled({}, ()) for _ in places]
    whose: list[dict[str, str]] = [{} for _ in places]
    for pattern, values in rules:
        matches = _compiled(what, pattern, prefixes)
        hits = [i for i, paths in enumerate(places) if any(map(matches, paths))]
        if not hits:
            raise UsageError(f"{what} {pattern!r} matches no parameter{_nearest(pattern, places)}")
        for i in hits:
            mine = found[i].values
            for key, value in values.items():
                if key in mine and not _same(mine[key], value):
                    raise UsageError(
                        f"{what}s {whose[i][key]!r} and {pattern!r} both match {show_path(places[i][0])} and disagree "
                        f"on {key}: {mine[key]!r} and {value!r}; make one of the patterns narrower"
                    )
                mine[key] = value
                whose[i].setdefault(key, pattern)
            found[i] = Ruled(mine, (*found[i].patterns, pattern))
    return found


def flags_by_rules(
    rules: Mapping[str, Any],
    places: Sequence[tuple[str, ...]],
    default: Sequence[bool],
    what: str = "requires_grad",
    *,
    prefixes: bool = False,
) -> list[bool]:
    """Return one flag per parameter: what the rules set, else its `default`. Raises UsageError as `apply_rules`
    does."""
    for pattern, flag in rules.items():
        if not isinstance(flag, bool):
            raise UsageError(f"requires_grad of {pattern!r} must be a bool but is {flag!r}")
    said = apply_rules(what, [(pattern, {"flag": flag}) for pattern, flag in rules.items()], places, prefixes=prefixes)
    return [each.values.get("flag", flag) for each, flag in zip(said, default, strict=True)]


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b) if isinstance(a, bool) or isinstance(b, bool) else bool(a == b)


def _compiled(what: str, pattern: str, prefixes: bool = False) -> Any:
    parts = [part.strip() for part in pattern.split("|")] if isinstance(pattern, str) else []
    if not all(parts):
        raise UsageError(f"{what} {pattern!r} must be a pattern such as 'encoder.*' or '*.bias|*norm*'")
    below = [f"{part}.*" for part in parts if prefixes and not is_pattern(part)]
    return re.compile("|".join(map(translate, [*parts, *below]))).match


def _nearest(pattern: str, places: Sequence[tuple[str, ...]]) -> str:
    """Return ` (did you mean …?)` with a similar path, or with the pattern changed to match one."""
    paths = [path for each in places for path in each]
    for text in pattern.split("|"):
        close = nearest(text.strip(), paths)
        bare = text.strip().strip("*.?")
        if not close and bare:
            parts = dict.fromkeys(part for path in paths for part in path.split("."))
            alike = [text.strip().replace(bare, part) for part in parts if nearest(bare, [part])]
            close = nearest(text.strip(), alike)
        if close:
            return close
    shown = ", ".join(map(show_path, paths[:4]))
    return f"; there are {shown}{f' and {len(paths) - 4} more' if len(paths) > 4 else ''}"


# Groups ---------------------------------------------------------------------------------------------------------------


@called_by_users
def grouped(optimizer: Optimizer, groups: Mapping[str, Mapping[str, Any] | Optimizer]) -> Optimizer:
    """Return `optimizer` with other hyperparameters for paths that match: `{"*.bias|*norm*": {"weight_decay": 0}}`.

    groups   patterns (see `apply_rules`), each with hyperparameters of the optimizer, or with another optimizer

    A number for `lr` replaces the rate, or the peak of its schedule; a Schedule replaces the schedule, and `lr_scale`
    multiplies the rate at every step. If patterns overlap, the hyperparameters of both apply. Equal to a separate
    optimizer for each group, bit for bit. PyTorch: parameter groups.

    Raises UsageError for a hyperparameter that the optimizer does not have. Binding it to parameters raises UsageError
    for a pattern that matches none, and for two patterns that disagree.

    Raises:
        UsageError: something other than an optimizer; a rule that matches nothing, or sets an unknown hyperparameter.
    """
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"grouped takes an optimizer, such as adamw(1e-3), but got {optimizer!r}")
    if isinstance(optimizer, (Grouped, BoundGroups)):
        raise UsageError("grouped takes an optimizer without groups; give all groups at once")
    if not isinstance(groups, Mapping):
        raise UsageError(
            f"grouped takes a dict of patterns, such as {{'*.bias': {{'weight_decay': 0}}}}, not {groups!r}"
        )
    rules: list[tuple[str, tuple[tuple[str, Any], ...]]] = []
    for pattern, values in groups.items():
        if isinstance(values, Optimizer):
            if isinstance(values, (Grouped, BoundGroups)):
                raise UsageError(f"{_WHAT} {pattern!r}: an optimizer without groups is expected")
            rules.append((pattern, ((_OPTIMIZER, values),)))
            continue
        if not isinstance(values, Mapping) or not values:
            raise UsageError(
                f"{_WHAT} {pattern!r} must have numbers, such as {{'weight_decay': 0}}, but has {values!r}"
            )
        try:
            _having(optimizer, values)
        except UsageError as error:
            raise UsageError(f"{_WHAT} {pattern!r}: {error}") from None
        rules.append((pattern, tuple(values.items())))
    return Grouped(optimizer.lr, optimizer, tuple(rules))


def _having(optimizer: Optimizer, values: Mapping[str, Any]) -> Optimizer:
    numbers = {key: value for key, value in values.items() if key != _SCALE}
    made = optimizer.having(**numbers) if numbers else optimizer
    if _SCALE in values:
        made = made.scaled(require_nonnegative(optimizer.name, _SCALE, values[_SCALE]))
    return made


@dataclass(frozen=True)
class _OfGroups(Optimizer):
    """An optimizer with a base for parameters outside groups.

    The path of a parameter selects the optimizer of its group, so an update needs a path.
    """

    base: Optimizer

    @property
    @override
    def name(self) -> str:
        return self.base.name

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        raise ProgramError(
            "an optimizer of groups moves parameters by their paths: bind it to them with bound(places), of which "
            "at(path) gives the optimizer of one"
        )


@final
@dataclass(frozen=True)
class Grouped(_OfGroups):
    """An optimizer and the rules of its groups, not yet bound to parameters; see `grouped`.

    factor   the product of the factors passed to `scaled`
    """

    rules: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    factor: float = 1.0

    @property
    @override
    def state_name(self) -> str:
        return self.base.state_name

    @override
    def having(self, **numbers: Any) -> Optimizer:
        return replace(self, base=self.base.having(**numbers))

    @override
    def scaled(self, factor: float) -> Optimizer:
        return replace(self, lr=scaled_rate(self.lr, factor), factor=self.factor * factor)

    @override
    def bound(self, places: Sequence[tuple[str, ...]]) -> BoundGroups:
        members: list[Optimizer] = []
        labels: list[tuple[str, ...]] = []
        numbers: dict[tuple[str, ...], int] = {}
        which: dict[str, int] = {}
        said = apply_rules(_WHAT, [(pattern, dict(values)) for pattern, values in self.rules], places)
        for paths, (values, patterns) in zip(places, said):
            if patterns not in numbers:
                if _OPTIMIZER in values and len(values) > 1:
                    raise UsageError(
                        f"{_WHAT}s {' and '.join(map(repr, patterns))} both match {show_path(paths[0])}, and one has "
                        "its own optimizer, for which the numbers of the other are not; make one of them narrower"
                    )
                made = values[_OPTIMIZER] if _OPTIMIZER in values else _having(self.base, values)
                numbers[patterns] = len(members)
                members.append(made.scaled(self.factor))
                labels.append(patterns)
            which[paths[0]] = numbers[patterns]
        return BoundGroups(self.lr, self.base, tuple(members), tuple(labels), tuple(which.items()))

    @override
    def init(self, types: Sequence[tuple[Shape, DType]], names: Sequence[str] | None = None) -> list[tuple[Slot, ...]]:
        if names is None:
            raise UsageError("an optimizer of groups needs the paths of the parameters")
        return self.bound([(name,) for name in names]).init(types, names)

    @override
    def scalars(self, t: int) -> dict[str, float]:
        return self.base.scaled(self.factor).step_scalars(t)


@final
@dataclass(frozen=True)
class BoundGroups(_OfGroups):
    """An optimizer with groups, bound to parameters.

    members   the optimizers of the groups, and `labels` the patterns of each; the base has no pattern
    which     maps each parameter's first path to the index of its optimizer
    """

    members: tuple[Optimizer, ...]
    labels: tuple[tuple[str, ...], ...]
    which: tuple[tuple[str, int], ...]

    @cached_property
    @override
    def state_name(self) -> str:
        """Return the name of the base; if groups have another optimizer, also their paths, or a digest of very many."""
        others: dict[str, list[str]] = {}
        for path, i in self.which:
            if self.members[i].state_name != self.base.state_name:
                others.setdefault(self.members[i].state_name, []).append(path)
        if not others:
            return self.base.state_name
        text = "; ".join(f"{name} for {', '.join(map(show_path, paths))}" for name, paths in sorted(others.items()))
        if len(text) > _LONGEST:
            text = (
                f"{', '.join(sorted(others))} for {sum(map(len, others.values()))} parameters, sha256 {_digest(text)}"
            )
        return f"{self.base.state_name} with {text}"

    @cached_property
    @override
    def program_key(self) -> tuple[Hashable, ...]:
        return (BoundGroups, tuple([member.program_key for member in self.members]), self.which)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return dict(self.which)

    @override
    def having(self, **numbers: Any) -> Optimizer:
        raise UsageError("an optimizer that is bound to its parameters keeps its numbers")

    @override
    def scaled(self, factor: float) -> Optimizer:
        members = tuple([member.scaled(factor) for member in self.members])
        return replace(self, lr=scaled_rate(self.lr, factor), base=self.base.scaled(factor), members=members)

    @override
    def at(self, path: str) -> Optimizer:
        return self.members[self._numbers[path]]

    @override
    def scalars_at(self, path: str, scalars: Mapping[str, Any]) -> Mapping[str, Any]:
        prefix = _prefix(self._numbers[path])
        return {name.removeprefix(prefix): value for name, value in scalars.items() if name.startswith(prefix)}

    @override
    def init(self, types: Sequence[tuple[Shape, DType]], names: Sequence[str] | None = None) -> list[tuple[Slot, ...]]:
        assert names is not None
        return [self.at(name).init([type_], [name])[0] for type_, name in zip(types, names, strict=True)]

    @override
    def scalars(self, t: int) -> dict[str, float]:
        return self._of_members([member.step_scalars(t) for member in self.members])

    @override
    def step_scalars(self, t: int) -> dict[str, float]:
        return self.scalars(t)  # each member has a rate of its own

    @override
    def scalar_ranges(self) -> dict[str, tuple[float, float]]:
        return self._of_members([member.scalar_ranges() for member in self.members])

    def _of_members(self, each: Sequence[Mapping[str, T]]) -> dict[str, T]:
        """Return the values that each member has by the names of its scalars, by those of all."""
        return {_prefix(i) + name: value for i, values in enumerate(each) for name, value in values.items()}


_LONGEST = 200


def _prefix(number: int) -> str:
    return f"group{number}."


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# The table of how each parameter is updated -------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class MovedParameter:
    """A parameter and its hyperparameters; `lr` is the peak of a schedule, or None if that has none.

    rules   the patterns of its groups
    """

    path: str
    shape: Shape
    frozen: bool
    optimizer: str
    lr: Any
    weight_decay: Any
    rules: tuple[str, ...]

    @property
    def numbers(self) -> str:
        """Format as `adamw, lr 0.001, weight_decay 0.01`, or `frozen`."""
        if self.frozen:
            return "frozen"
        lr = "scheduled" if self.lr is None else f"{self.lr:.6g}"
        decay = "" if self.weight_decay is None else f", weight_decay {self.weight_decay:.6g}"
        return f"{self.optimizer}, lr {lr}{decay}"


def group_table(
    optimizer: Optimizer, names: Sequence[str], shapes: Sequence[Shape], trained: Sequence[bool]
) -> list[MovedParameter]:
    """Return a row for each parameter. `optimizer` must be bound to them, see `Optimizer.bound`."""
    labels = dict(optimizer.which) if isinstance(optimizer, BoundGroups) else {}
    rows = []
    for name, shape, wanted in zip(names, shapes, trained, strict=True):
        mover = optimizer.at(name).mover(shape)
        rules = optimizer.labels[labels[name]] if isinstance(optimizer, BoundGroups) else ()
        decay = getattr(mover, "weight_decay", None)
        rows.append(MovedParameter(name, shape, not wanted, mover.name, peak(mover.lr), decay, rules))
    return rows


def group_lines(rows: Sequence[MovedParameter]) -> list[str]:
    """Return a line for each group: `*.bias: 4 tensors, 1,024 parameters: adamw, lr 0.001, weight_decay 0`."""
    groups: dict[tuple[tuple[str, ...], str], list[MovedParameter]] = {}
    for row in rows:
        groups.setdefault((row.rules, row.numbers), []).append(row)
    lines = []
    for (rules, numbers), members in groups.items():
        count = sum(prod(row.shape) for row in members)
        tensors = f"{len(members)} tensor{'s' if len(members) > 1 else ''}, {count:,} parameters"
        lines.append(f"{' and '.join(rules) or 'in no group'}: {tensors}: {numbers}")
    return lines


_HEAD = ("parameter", "shape", "optimizer", "rate", "decay", "groups")


def _cells(row: MovedParameter) -> tuple[str, ...]:
    rate = "scheduled" if row.lr is None else f"{row.lr:.6g}"
    decay = "" if row.weight_decay is None else f"{row.weight_decay:.6g}"
    moved = ("frozen", "", "") if row.frozen else (row.optimizer, rate, decay)
    return (show_path(row.path), show_shape(row.shape), *moved, ", ".join(row.rules))


def group_rows(rows: Sequence[MovedParameter]) -> list[tuple[str, ...]]:
    """Return the cells of the table: its heading, and a row for each parameter."""
    return [_HEAD, *map(_cells, rows)]


def group_text(rows: Sequence[MovedParameter]) -> str:
    """Return the table as text, with a line for each parameter."""
    return "\n".join(aligned(group_rows(rows)))
