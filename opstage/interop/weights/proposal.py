"""The proposal: match parameters and tensors by their names and shapes.

Tensors are matched by layer: the weight and bias of a layer have one source. A pair of layers is possible if their
weights have the same shape, possibly after a transpose, and the biases agree. Pairs in which each is the other's best
match by name are taken first, repeatedly. A layer without a unique best match is ambiguous, and left to the user.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...ops.errors import UsageError
from ...ops.tied_parameters import show_tied
from ...training.parameters import same_bits
from .mapping import (
    Array,
    MappedParameter,
    Source,
    TensorName,
    WeightLayout,
    WeightMap,
    cell_and_side,
    layouts,
    likeness,
    read_name,
    square,
)

_FUSED = ("in_proj", "qkv", "c_attn", "query_key_value")
_BOOKKEEPING = ("num_batches_tracked", "rotary_emb.inv_freq")


@dataclass
class _Layer:
    """The tensors of one layer by role."""

    name: TensorName
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)

    @property
    def weight(self) -> tuple[int, ...]:
        return self.shapes.get("weight", ())


def propose(
    parameters: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Array], overrides: Mapping[str, str] | None = None
) -> WeightMap:
    """A source among `tensors` for each of `parameters` (path -> shape), or why there is none.

    `overrides` are decided already: path -> name of a tensor, or `name:T` for its transpose; the path `-` has the names
    that are left out. A tensor that no parameter takes is an error too, unless it is bookkeeping (masks, counters) or
    equal to one that is taken.
    """
    decided, ignored = _decided(parameters, tensors, overrides or {})
    ours = _layers_of({path: shape for path, shape in parameters.items() if path not in decided})
    taken = {name for row in decided.values() if row.source is not None for name in row.source.names}
    theirs = _tensor_layers({name: a for name, a in tensors.items() if name not in taken | ignored}, ours)
    rows = [*decided.values(), *_rows(ours, theirs, _pairs(ours, theirs))]
    used = {name for row in rows if row.source is not None for name in row.source.names}
    unused = [name for name in tensors if name not in used | ignored and not _harmless(name, tensors, used)]
    order = {path: i for i, path in enumerate(parameters)}
    return WeightMap(sorted(rows, key=lambda row: order.get(row.path, len(order))), unused)


def _decided(
    parameters: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Array], overrides: Mapping[str, str]
) -> tuple[dict[str, MappedParameter], set[str]]:
    rows, ignored = {}, set()
    for path, text in overrides.items():
        name, transposed = text.removesuffix(":T"), text.endswith(":T")
        if path == "-":
            ignored |= set(name.split(","))
            continue
        if path not in parameters or name not in tensors:
            what = f"no parameter {path!r}" if path not in parameters else f"no tensor {name!r} in the file"
            rows[path] = MappedParameter(path, parameters.get(path, ()), None, f"you chose {text}, but there is {what}")
            continue
        shape, found = parameters[path], tensors[name].shape
        axes = tuple(reversed(range(len(found)))) if transposed else None
        fits = _without_ones(found[::-1] if transposed else found) == _without_ones(shape)
        source = Source(name, found, axes) if fits else None
        rows[path] = MappedParameter(
            path, shape, source, "your choice" if fits else f"{text} that you chose is {found}"
        )
    return rows, ignored


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _layers_of(parameters: Mapping[str, tuple[int, ...]]) -> list[_Layer]:
    found: dict[str, _Layer] = {}
    for path, shape in parameters.items():
        name = read_name(path)
        layer = found.setdefault(name.module, _Layer(name))
        layer.shapes[name.role], layer.paths[name.role] = tuple(shape), path
    return _with_statistics(list(found.values()))


def _with_statistics(layers: Sequence[_Layer]) -> list[_Layer]:
    """Move running statistics, which have a tree of their own, to the normalisation layer of the same path."""
    whole = [layer for layer in layers if "weight" in layer.shapes or "bias" in layer.shapes]
    rest = []
    for layer in layers:
        if layer in whole:
            continue
        beneath = [
            other
            for other in whole
            if other.name.module.startswith(f"{layer.name.module}.") and other.weight in layer.shapes.values()
        ]
        if len(beneath) == 1 and not set(layer.shapes) & set(beneath[0].shapes):
            beneath[0].shapes.update(layer.shapes)
            beneath[0].paths.update(layer.paths)
            beneath[0].sources.update(layer.sources)
        else:
            rest.append(layer)
    return whole + rest


def _tensor_layers(tensors: Mapping[str, Array], ours: Sequence[_Layer]) -> list[_Layer]:
    found: dict[str, _Layer] = {}
    for tensor, array in tensors.items():
        name = read_name(tensor)
        layer = found.setdefault(name.module, _Layer(name))
        layer.shapes[name.role], layer.sources[name.role] = array.shape, Source(tensor, array.shape)
    apart = any({"query", "attention"} <= set(layer.name.words) for layer in ours)
    whole = _with_statistics(list(found.values()))
    if any("recurrent" in layer.name.words for layer in ours):
        whole = _as_cells(whole)
    layers: list[_Layer] = []
    for layer in whole:
        layers += _cut(layer) if apart and any(word in layer.name.module for word in _FUSED) else [layer]
    return layers


def _as_cells(layers: Sequence[_Layer]) -> list[_Layer]:
    """Convert PyTorch's recurrent layers to our form: a weight for the input, one for the state, the sum of the
    biases."""
    rest: list[_Layer] = []
    biases: dict[str, _Layer] = {}
    for layer in layers:
        part = cell_and_side(layer.name.module)
        if part is None:
            rest.append(layer)
            continue
        cell, side = part
        words = tuple(word for word in layer.name.words if word not in ("ih", "hh", "l", "reverse"))
        if "weight" in layer.sources:
            name = layer.name._replace(module=f"{cell} {side}", words=(*words, side))
            rest.append(_Layer(name, {"weight": layer.weight}, {"weight": layer.sources["weight"]}))
        bias = layer.sources.get("bias")
        if bias is not None and cell in biases:
            other = biases[cell].sources["bias"]
            first, second = (bias, other) if side == "input" else (other, bias)
            biases[cell].sources["bias"] = replace(first, plus=second.name)
        elif bias is not None:
            name = layer.name._replace(module=f"{cell} bias", words=words)
            biases[cell] = _Layer(name, {"bias": bias.shape}, {"bias": bias})
    return [*rest, *biases.values()]


def _cut(layer: _Layer) -> list[_Layer]:
    """Split a layer that computes query, key and value at once into three layers."""
    weight = layer.weight
    if len(weight) != 2:
        return [layer]
    axis = 0 if weight[0] == 3 * weight[1] else 1 if weight[1] == 3 * weight[0] else None
    if axis is None:
        return [layer]
    pieces = []
    for part, word in enumerate(("query", "key", "value")):
        words = (*(w for w in layer.name.words if w not in ("in", "out", "qkv", "query", "key", "value")), word)
        piece = _Layer(layer.name._replace(words=words, module=f"{layer.name.module} {word}"))
        for role, source in layer.sources.items():
            along = axis if role == "weight" else 0
            shape = tuple(size // 3 if a == along else size for a, size in enumerate(source.shape))
            piece.shapes[role] = shape
            piece.sources[role] = replace(source, part=part, parts=3, axis=along)
        pieces.append(piece)
    return pieces


def _pairs(ours: Sequence[_Layer], theirs: Sequence[_Layer]) -> dict[int, int | list[int]]:
    """For each of our layers, return the index of the matching layer, or a list of equally good ones."""
    our_places, their_places = _places(ours), _places(theirs)
    scores: dict[int, dict[int, float]] = {}
    for i, a in enumerate(ours):
        scores[i] = {
            j: _score(a, b, our_places[i], their_places[j]) for j, b in enumerate(theirs) if layouts(a.shapes, b.shapes)
        }
    pairs: dict[int, int | list[int]] = {}
    while True:
        best = {i: _best(row) for i, row in scores.items()}
        columns: dict[int, dict[int, float]] = {}
        for i, row in scores.items():
            for j, score in row.items():
                columns.setdefault(j, {})[i] = score
        mutual = [(i, js[0]) for i, js in best.items() if len(js) == 1 and _best(columns[js[0]]) == [i]]
        if not mutual:
            return {**pairs, **best}
        # The surest first; pairs with equal scores do not depend on their order.
        surest = max(scores[i][j] for i, j in mutual)
        for i, j in mutual:
            if scores[i][j] == surest:
                pairs[i] = j
        gone = {j for j in pairs.values() if isinstance(j, int)}
        scores = {
            i: {j: score for j, score in row.items() if j not in gone} for i, row in scores.items() if i not in pairs
        }


def _best(row: Mapping[int, float]) -> list[int]:
    top = max(row.values(), default=0.0)
    return [key for key, score in row.items() if math.isclose(score, top, abs_tol=1e-9)]


def _score(a: _Layer, b: _Layer, place_a: tuple[int, ...], place_b: tuple[int, ...]) -> float:
    """Score how well two layers match: 10 for the same name, 2 for all the words and 1 for the same place."""
    same_name = 10.0 if a.name.module == b.name.module else 0.0
    if len(a.name.numbers) == len(b.name.numbers):
        place = 1.0 if place_a[:-1] == place_b[:-1] else -1.0
    else:
        place = 0.5 if place_a[-1] == place_b[-1] else 0.0
    transposed = WeightLayout.TRANSPOSED in layouts(a.shapes, b.shapes) and a.weight != b.weight
    return same_name + 2 * likeness(a.name, b.name) + place - (0.25 if transposed else 0.0)


def _places(layers: Sequence[_Layer]) -> list[tuple[int, ...]]:
    """Return the position of each layer among those of its shape, by its numbers: the rank of each, and of all
    together.

    Ranks make `features.0` and `features.3` the first and second, like `layers.0` and `layers.1`.
    """
    classes: dict[object, list[int]] = {}
    for i, layer in enumerate(layers):
        classes.setdefault((tuple(sorted(layer.weight)), len(layer.name.numbers)), []).append(i)
    places: list[tuple[int, ...]] = [()] * len(layers)
    for members in classes.values():
        numbers = [layers[i].name.numbers for i in members]
        order = sorted(set(numbers))
        columns = [sorted(set(column)) for column in zip(*numbers)]
        for i, own in zip(members, numbers):
            places[i] = (*(column.index(n) for column, n in zip(columns, own)), order.index(own))
    return places


def _rows(
    ours: Sequence[_Layer], theirs: Sequence[_Layer], pairs: Mapping[int, int | list[int]]
) -> list[MappedParameter]:
    matched = [(ours[i], theirs[j]) for i, j in pairs.items() if isinstance(j, int)]
    rows = []
    for i, a in enumerate(ours):
        j = pairs.get(i, [])
        if isinstance(j, list):
            names = " or ".join(sorted({theirs[n].name.module for n in j}))
            why = f"ambiguous: {names} would do" if j else "missing: no layer of the file has its shape"
            rows += [MappedParameter(path, a.shapes[role], None, why) for role, path in a.paths.items()]
            continue
        b = theirs[j]
        how, doubt = _layout(a, b, matched)
        for role, path in a.paths.items():
            source = b.sources.get(role)
            if source is None:
                rows.append(MappedParameter(path, a.shapes[role], None, f"missing: {b.name.module} has no {role}"))
            elif role == "weight" and doubt:
                rows.append(MappedParameter(path, a.shapes[role], None, doubt))
            else:
                axes = how.axes(len(b.weight)) if role == "weight" else None
                rows.append(MappedParameter(path, a.shapes[role], replace(source, axes=axes), _why(a, b)))
    return rows


def _why(a: _Layer, b: _Layer) -> str:
    if a.name.module == b.name.module:
        return "same name"
    return "like name" if likeness(a.name, b.name) >= 0.5 and a.name.words else "place and shape"


def _layout(a: _Layer, b: _Layer, matched: Sequence[tuple[_Layer, _Layer]]) -> tuple[WeightLayout, str]:
    """Return the layout of their weight, and the doubt if nothing decides it.

    A square weight fits either way. A part of a larger weight has that one's layout. Any other has the layout of the
    non-square linear weights in the file; a layer with a bias is compared with those that have one, since embeddings,
    and heads tied to them, have none and one layout everywhere.
    """
    possible = layouts(a.shapes, b.shapes)
    if not square(b.weight) or {"embedding", "position"} & set(a.name.words):
        return possible[0], ""
    source = b.sources["weight"]
    if source.parts > 1:
        return (WeightLayout.SAME, WeightLayout.TRANSPOSED)[source.axis], ""
    told = {
        layouts(x.shapes, y.shapes)[0]
        for x, y in matched
        if len(y.weight) == 2
        and not square(y.weight)
        and ("bias" in x.shapes) == ("bias" in a.shapes)
        and not {"embedding", "position"} & set(x.name.words)
    }
    if len(told) > 1:
        return possible[0], f"ambiguous: {b.name.module} is square, and other layers lie both ways"
    return (told.pop() if told else WeightLayout.SAME), ""


def _harmless(name: str, tensors: Mapping[str, Array], used: set[str]) -> bool:
    """Whether a tensor may stay unused: counters, masks, and a second copy of a tensor that two layers share."""
    array = tensors[name]
    if name.endswith(_BOOKKEEPING) or array.dtype.kind in "bu" or name.endswith(("attn.bias", "attn.masked_bias")):
        return True
    return any(array.shape == tensors[other].shape and np.array_equal(array, tensors[other]) for other in used)


# Tied parameters ------------------------------------------------------------------------------------------------------

Tied = Mapping[str, tuple[str, ...]]
"""Maps the name of each parameter with several places to all their paths."""

_FORMAT = "format"  # the format of the tensors in a file, stored in the same metadata


def with_dropped_names(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> dict[str, Array]:
    """Return a file's tensors under all the names in its metadata, as one array for all names of a tensor."""
    dropped = {
        name: tensors[stored]
        for name, stored in metadata.items()
        if name != _FORMAT and name not in tensors and stored in tensors
    }
    return dict(sorted({**tensors, **dropped}.items()))


def stored_once(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors, each under its first name, and a map from each other name to that.

    A tensor called `format` is always stored, since the metadata use that key otherwise.
    """
    firsts: dict[int, str] = {}
    for name, array in tensors.items():
        firsts.setdefault(id(array), name)
    kept = {name: array for name, array in tensors.items() if name in (firsts[id(array)], _FORMAT)}
    return kept, {name: firsts[id(array)] for name, array in tensors.items() if name not in kept}


def everywhere(values: Mapping[str, Array], tied: Tied) -> dict[str, Array]:
    """Return values by place from values by name: one array at all places of a parameter."""
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
    """Return `written` with arrays shared as in `like`. Raises UsageError if their values differ."""
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
    """Return the place with a name most similar to that of a tensor of the shape, in any layout; the first of
    several."""
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
    """Note in rows that use one tensor under two of its names that the parameters are separate here."""
    stored = stored_once(tensors)[1]
    takers: dict[str, dict[str, str]] = {}  # for each shared tensor, name -> the parameter that uses it under that name
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
