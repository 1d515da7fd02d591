"""Parameters at several places, and tensors under several names.

In a state_dict one array under two names is one tensor that two layers share. The safetensors format has no such thing:
`safetensors.torch.save_model` stores it once and keeps the other names, each with the one that is stored, in the file's
metadata. Both are read and written so here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...ops.errors import UsageError
from ...ops.places import show_tied
from ..parameters import same_bits
from .mapping import Array, MappedParameter, WeightMap
from .names import likeness, read_name
from .propose import propose

Tied = Mapping[str, tuple[str, ...]]
"""For each parameter at several places its name -> the paths of all of them."""

_FORMAT = "format"  # whose tensors a file holds, which is in the same metadata


def with_dropped_names(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> dict[str, Array]:
    """The tensors of a file, each under all the names that its metadata give it; one array under all of them."""
    dropped = {
        name: tensors[stored]
        for name, stored in metadata.items()
        if name != _FORMAT and name not in tensors and stored in tensors
    }
    return dict(sorted({**tensors, **dropped}.items()))


def stored_once(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors, each under the first of its names, and for each other name that one.

    A tensor called `format` is kept: the metadata have another use for that name.
    """
    firsts: dict[int, str] = {}
    for name, array in tensors.items():
        firsts.setdefault(id(array), name)
    kept = {name: array for name, array in tensors.items() if name in (firsts[id(array)], _FORMAT)}
    return kept, {name: firsts[id(array)] for name, array in tensors.items() if name not in kept}


def everywhere(values: Mapping[str, Array], tied: Tied) -> dict[str, Array]:
    """Values by name as values by place: one array at all places of a parameter."""
    found: dict[str, Array] = {}
    for name, array in values.items():
        found |= dict.fromkeys(tied.get(name, (name,)), array)
    return found


def propose_tied(
    shapes: Mapping[str, tuple[int, ...]], tied: Tied, tensors: Mapping[str, Array], overrides: Mapping[str, str]
) -> WeightMap:
    """`propose`, where each of `tied` goes by the one of its places that is most like a tensor's name.

    A choice may be made for any of the places. Where one tensor of the file becomes two parameters, their rows say so.
    Raises UsageError for different tensors at two places of one.
    """
    called = {name: _likeliest(paths, shapes[name], tensors) for name, paths in tied.items()}
    owners = {path: name for name, paths in tied.items() for path in paths}
    choices: dict[str, str] = {}
    for path, text in overrides.items():
        own = called.get(owners.get(path, path), path)
        if choices.setdefault(own, text) != text and own != "-":
            raise UsageError(
                f"{show_tied(tied[owners[path]])} is one parameter, but {choices[own]} and {text} are chosen for it"
            )
    found = propose({called.get(name, name): shape for name, shape in shapes.items()}, tensors, choices)
    return replace(found, rows=_with_parted([_row(row, owners, tied) for row in found.rows], tensors))


def shared_as_in(written: Mapping[str, Array], like: Mapping[str, Array]) -> dict[str, Array]:
    """`written` with one array under the names that have one in `like`. Raises UsageError where their values differ."""
    result = dict(written)
    for name, stored in stored_once(like)[1].items():
        if not same_bits(result[name], result[stored]):
            raise UsageError(
                f"{name} and {stored} are one tensor in the file to be like, but here they have values that differ; "
                "give a file of a model that has two, or train one parameter for both"
            )
        result[name] = result[stored]
    return result


def _likeliest(paths: tuple[str, ...], shape: tuple[int, ...], tensors: Mapping[str, Array]) -> str:
    """The place whose name is most like that of a tensor of the shape, however it lies; the first of several."""
    fitting = [read_name(name) for name, array in tensors.items() if sorted(array.shape) == sorted(shape)]

    def likest(path: str) -> float:
        own = read_name(path)
        return max((likeness(own, name) + (own.module == name.module) for name in fitting), default=0.0)

    return max(paths, key=likest)


def _row(row: MappedParameter, owners: Mapping[str, str], tied: Tied) -> MappedParameter:
    if row.path not in owners:
        return row
    name = owners[row.path]
    others = [path for path in tied[name] if path != name]
    return replace(row, path=name, why=f"{row.why}; tied to {', '.join(others)}")


def _with_parted(rows: Sequence[MappedParameter], tensors: Mapping[str, Array]) -> list[MappedParameter]:
    """The rows, where those that take one tensor by two of its names say that the parameters are apart here."""
    stored = stored_once(tensors)[1]
    takers: dict[str, dict[str, str]] = {}  # of a shared tensor: its name -> the parameter that takes it by that one
    for row in rows:
        for name in row.source.names if row.source is not None else ():
            if name in stored or name in stored.values():
                takers.setdefault(stored.get(name, name), {}).setdefault(name, row.path)
    apart = {path: group.values() for group in takers.values() if len(group) > 1 for path in group.values()}
    return [
        replace(row, why=f"{row.why}; shared there with {', '.join(p for p in apart[row.path] if p != row.path)}")
        if row.path in apart
        else row
        for row in rows
    ]
