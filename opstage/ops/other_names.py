"""Names of other libraries for things that Opstage names differently: errors mention Opstage's name.

`other_names.toml` has them: of PyTorch and NumPy, and those of TorchLean, which docs/reference.md lists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UnknownNameError, nearest

_NO_INPLACE = "nothing changes in place: a program returns what is new"


@cache
def names_of(table: str) -> dict[str, str]:
    """Return a table of names and Opstage's equivalents: `ops`, `refs`, `package` or `torchlean`.

    Those of TorchLean are squashed, since Lean's conventions of case are not Python's.
    """
    found: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))[table]
    return {_squashed(name): ours for name, ours in found.items()} if table == "torchlean" else found


def _squashed(name: str) -> str:
    return name.replace("_", "").lower()


def _respelled(name: str, holder: str, known: Iterable[str]) -> str | None:
    """Return Opstage's name for a name of TorchLean, or for one among `known` in another spelling, `trainSGD`."""
    squashed = _squashed(name)
    ours = names_of("torchlean").get(squashed)
    same = [each for each in known if _squashed(each) == squashed and not each.startswith("_")]
    return ours or (f"{holder}.{same[0]}" if same else None)


class Renamed:
    """The base of classes whose instances answer a name of TorchLean, or in another spelling, with their own."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers should report unknown names

        def __getattr__(self, name):
            kind = type(self).__name__
            ours = None if name.startswith("_") else _respelled(name, kind, dir(type(self)))
            raise _plain(self, name) if ours is None else _renamed(f"{kind} has no {name}: Opstage calls it {ours}")


def no_such_op(ops: object, name: str, known: Collection[str]) -> UnknownNameError:
    """Return the error for `ops.name`, which is not an op."""
    if name.startswith("__"):
        return _plain(ops, name)
    ours = names_of("ops").get(name)
    if ours is None and name.endswith("_") and name[:-1] in known:
        ours = f"ops.{name[:-1]}: {_NO_INPLACE}"
    ours = ours or _derived(name) or _respelled(name, "ops", {*known, *dir(type(ops))})
    if ours is None:
        return _renamed(f"there is no op {name!r}{nearest(name, known)}; docs/reference.md lists all ops")
    return _renamed(f"ops.{name}: Opstage calls it {ours}")


def no_such_method(ref: object, name: str, known: Collection[str]) -> UnknownNameError:
    """Return the error for `ref.name`: a ref only has a shape, a dtype and operators."""
    if name.startswith("_"):
        return _plain(ref, name)
    ours, others = names_of("refs").get(name), names_of("ops")
    if ours is None and name in known:
        ours = f"ops.{name}(x, …)"
    if ours is None and name.endswith("_") and (name[:-1] in known or name[:-1] in others):
        ours = f"{others.get(name[:-1], f'ops.{name[:-1]}(x, …)')}; {_NO_INPLACE}"
    ours = ours or others.get(name) or _derived(name) or _respelled(name, "ops", known)
    if ours is None:
        return _renamed(f"a ref has no {name}; ops are methods of the program's first argument, as ops.relu(x)")
    return _renamed(f"a ref has no {name}; ops are methods of the program's first argument: Opstage calls it {ours}")


def _derived(name: str) -> str | None:
    """Return the call of a derived function, which is written as if it were an op; None if there is none."""
    from . import derived  # stands above this module, which is asked when a name is not found

    function = getattr(derived, name, None) if name in derived.__all__ else None
    if function is None:
        return None
    positions = [p.name for p in signature(function).parameters.values() if p.kind is not Parameter.KEYWORD_ONLY]
    return f"opstage.ops.derived.{name}({', '.join(positions)})"


def of_a_module(module: str, name: str, known: Collection[str]) -> str:
    """Return the replacement for `name` of a module that has `known`, as an addition to the error; empty if there is
    none."""
    ours = names_of("package").get(name) or _respelled(name, module, known)
    if ours is not None:
        return f"; use {ours}"
    ours = names_of("ops").get(name)
    return "" if ours is None else f"; in a program, of which ops is the first argument, it is {ours}"


def _renamed(message: str) -> UnknownNameError:
    """Return an error without `name` and `obj`, for which Python would suggest a similarly spelled name."""
    return UnknownNameError(message)


def _plain(holder: Any, name: str) -> UnknownNameError:
    return UnknownNameError(f"{type(holder).__name__!r} object has no attribute {name!r}", name, holder)
