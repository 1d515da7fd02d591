"""`Predictor`: the prediction function of a model, with its parameters, for any number of rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, final

import numpy as np

from ..compilation import record
from ..interpreters.graph import Graph
from ..interpreters.shape_check.contract import Contract
from ..models import Model
from ..ops.array_conversion import as_numpy
from ..ops.dims import DimScope
from ..ops.errors import UsageError, brief, nearest
from ..ops.spec import Spec, as_specs, lists_by_specs
from ..ops.static_arguments import plain
from ..ops.trees import Structure, flatten, lists_as_arrays, structure_paths, unflatten
from ..ops.types import as_dtype, is_float
from ..program_arguments import batch_arguments
from .executor import PreparedProgram
from .trainer import ScalarTrainer

_FEW = 1 << 16
"""Inputs of fewer bytes than this use the prepared fast path, since Python's overhead per call matters."""
_KINDS = 4
"""How many kinds of inputs have a prepared fast path at a time."""

_MOST_KINDS = 256

ROWS = 1024
"""The default number of rows per run."""


def input_specs(model: Model) -> dict[str, Any]:
    """Return the Specs of the arguments of a model's `outputs`, in order: those of the batch arguments of the same
    names.

    Raises UsageError for a model that predicts nothing, and for an argument that is not a batch argument.
    """
    if model.outputs is None:
        raise UsageError(
            f"model {model.name} predicts nothing: give its Model outputs=, a program (ops, params, x) -> tree of "
            "what it predicts"
        )
    batch, wanted = (batch_arguments(program, skip=model.batch_starts) for program in (model.forward, model.outputs))
    if batch is None or wanted is None:
        raise UsageError(f"model {model.name}: its loss and outputs must name their batch arguments, without *args")
    specs = dict(zip((*batch.required, *batch.optional), model.batch))
    for name in wanted.required:
        if name not in specs:
            raise UsageError(
                f"model {model.name}: its outputs take {name}, which is none of the loss's batch arguments "
                f"{', '.join(specs)}{nearest(name, specs)}"
            )
    return {name: specs[name] for name in wanted.required}


@final
class Predictor:
    """The predictions of a model with the current parameters of a trainer.

    names   its inputs, in the order of the arguments of `Model.outputs`
    specs   their Specs; types: the type of each array in them, with sizes by name
    """

    def __init__(self, model: Model, trainer: ScalarTrainer):
        """Create the predictor. Raises UsageError for a model that predicts nothing."""
        self.model = model
        self._trainer = trainer
        self.specs = input_specs(model)
        self.names = tuple(self.specs)
        trees = tuple(self.specs.values())
        self._leaves, structure = flatten(tuple(as_specs(tree) for tree in trees))
        paths = [_named(self.names, path) for path in structure_paths(structure)]
        self._contract = Contract(trees, paths, f"model {model.name}", "inputs")
        self._has_ranges = self._contract.has_ranges
        scope = DimScope()
        self.types = [leaf.bind(scope, as_dtype(trainer.options.dtype)) for leaf in self._leaves]
        self._prepared: list[PreparedProgram] = []  # the latest first
        self._never: set[Any] = set()  # kinds of inputs for which the interpreter has no prepared call
        self._apart = False  # whether rows are known to be independent

    @property
    def parameter_count(self) -> int:
        """Return the number of elements of all parameters."""
        return self._trainer.parameter_count

    def arguments(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the inputs in order, given some by position and the others by name. Raises UsageError."""
        given = dict(zip(self.names, inputs))
        takes = f"model {self.model.name} predicts from {', '.join(self.names)}"
        if len(inputs) > len(self.names):
            raise UsageError(f"{takes}, but got {len(inputs)} inputs")
        for name, value in named.items():
            if name not in self.specs or name in given:
                why = "is given twice" if name in given else f"is none of these{nearest(name, self.names)}"
                raise UsageError(f"{takes}: {name} {why}")
            given[name] = value
        missing = [name for name in self.names if name not in given]
        if missing:
            raise UsageError(f"{takes}: {missing[0]} is missing")
        return tuple(given[name] for name in self.names)

    def __call__(self, *inputs: Any, rows: int = ROWS, **named: Any) -> Any:
        """Return the outputs, a tree of arrays, for inputs by position or by name, computed `rows` at a time.

        Inputs are arrays, or lists of numbers, with a batch axis. Raises ShapeError and DtypeError for inputs that do
        not match the model's Specs, and UsageError if several batches are needed and the outputs are not per row.
        """
        if self._prepared and not named:
            if len(inputs) == len(self._leaves):  # else the contract says what is missing
                if list in map(type, inputs):
                    inputs = tuple(map(lists_by_specs, self._leaves, inputs))
                if self._has_ranges:
                    self._contract.check_values(inputs)
            quick = self._quick(inputs)
            if quick is None and (rounded := self._rounded(inputs)) is not None:
                quick = self._quick(rounded)
            if quick is not None:
                return quick
        rows = plain(rows)
        if not isinstance(rows, int) or isinstance(rows, bool):
            raise UsageError(f"rows must be a number of rows but is {brief(rows)}")
        if rows < 1:
            raise UsageError(f"rows must be at least 1 but is {rows}")
        trees = lists_as_arrays(self.arguments(inputs, named))
        leaves, structure = flatten(trees)
        specs = self._leaves if len(leaves) == len(self._leaves) else [None] * len(leaves)  # the contract reports that
        paths = [_named(self.names, path) for path in structure_paths(structure)]
        leaves = [_fitted(leaf, spec, path) for leaf, spec, path in zip(leaves, specs, paths)]
        self._contract.check(trees, leaves, leaves)
        count = len(leaves[0]) if leaves and leaves[0].ndim else 1
        outputs = self.model.outputs
        assert outputs is not None
        if count <= rows:
            result = self._trainer.evaluate(outputs, *unflatten(structure, leaves))
            self._prepare(trees, leaves)
            return result
        self._require_rows()
        parts = []
        for start in range(0, count, rows):
            part = [leaf[start : start + rows] for leaf in leaves]
            parts.append(self._trainer.evaluate(outputs, *unflatten(structure, part)))
            if not self._apart:
                self._require_apart(structure, part, parts[0])
        columns, made = zip(*[flatten(part) for part in parts])
        return unflatten(made[0], [np.concatenate(column) for column in zip(*columns)])

    def _quick(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs by a prepared call for such inputs, or None if there is none."""
        for prepared in self._prepared:
            if prepared.fits(inputs):
                quick = self._trainer.evaluate_prepared(prepared, *inputs)
                if quick is not None:
                    return quick
        return None

    def _rounded(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the inputs with floats rounded to the dtype of the program, as every interpreter does."""
        made = [
            x.astype(kind.dtype)
            if type(x) is np.ndarray and x.dtype.kind == "f" and kind.dtype.kind == "f" and x.nbytes <= _FEW
            else x
            for x, kind in zip(inputs, self.types)
        ]
        return made if len(made) == len(inputs) == len(self.types) else None

    def _prepare(self, trees: tuple[Any, ...], leaves: list[Any]) -> None:
        """Prepare a fast call for inputs like these, if they are small."""
        rounded = self._rounded(leaves)
        if rounded is None or len(leaves) != len(trees) or sum(leaf.nbytes for leaf in leaves) > _FEW:
            return
        leaves = rounded
        kind = tuple([(leaf.shape, leaf.dtype, leaf.flags.c_contiguous, leaf.flags.aligned) for leaf in leaves])
        if kind in self._never:
            return
        prepared = self._trainer.prepare(self.model.outputs, *leaves) if self.model.outputs is not None else None
        if prepared is not None:
            self._prepared = [prepared, *self._prepared[: _KINDS - 1]]
        elif len(self._never) < _MOST_KINDS:
            self._never.add(kind)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Return the names of parameters and any state in the graph: those of the arguments of the outputs."""
        assert self.model.outputs is not None
        return tuple(inspect.signature(self.model.outputs).parameters)[1 : self.model.batch_starts]

    @cached_property
    def graph(self) -> Graph:
        """Record the prediction function: its inputs are the parameters, any state, and the model's inputs."""
        return self.record(lambda ops, inputs: inputs)

    def record(self, prepare: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> Graph:
        """Record it with inputs that `prepare(ops, inputs)` converts to the model's."""
        trees = [as_specs(self._trainer.get_params())]
        if self.model.state is not None:
            trees.append(as_specs(self._trainer.state))
        outputs, first = self.model.outputs, len(trees)
        assert outputs is not None

        def program(ops: Any, *arguments: Any) -> Any:
            return outputs(ops, *arguments[:first], *prepare(ops, arguments[first:]))

        program.__signature__ = inspect.signature(outputs)  # type: ignore[attr-defined]  # its arguments name the inputs
        return record(program, *trees, *self.specs.values(), options=self._trainer.options)

    def _require_rows(self) -> None:
        """Raise if an input or an output has no axis of rows, so that batches cannot be concatenated."""
        rows = str(self.types[0].shape[0]) if self.types[0].shape else None
        for name, spec, type_ in zip(self.names, self._leaves, self.types):
            if not type_.shape or str(type_.shape[0]) != rows:
                raise UsageError(
                    f"model {self.model.name} takes {name} of {spec}, which lacks the axis of rows of the first "
                    "input. Predictions in parts are not supported: give rows= at least as many as there are"
                )
        for name, kind in zip(self.graph.output_names, self.graph.output_types):
            if not kind.shape or str(kind.shape[0]) != rows:
                raise UsageError(
                    f"model {self.model.name} predicts {name} of shape {tuple(kind.shape)}, which lacks an "
                    f"axis of {rows} rows. Predictions in parts are not supported: give rows= at least as many "
                    "as there are"
                )

    def _require_apart(self, structure: Structure, part: Sequence[Any], predicted: Any) -> None:
        """Raise if the prediction for the first half of some rows changes when the second half is replaced.

        Both runs have the same size, so that random draws and compiled code are the same.
        """
        half = len(part[0]) // 2
        other = [np.concatenate([leaf[:half], np.repeat(leaf[:1], len(leaf) - half, axis=0)]) for leaf in part]
        assert self.model.outputs is not None
        again = self._trainer.evaluate(self.model.outputs, *unflatten(structure, other))
        near = 1e-3 if self._trainer.options.dtype == "float32" else 1e-8
        for name, a, b in zip(self.graph.output_names, flatten(predicted)[0], flatten(again)[0]):
            if not half or a.dtype.kind != "f":
                continue
            size = float(np.abs(a).max(initial=0.0, where=np.isfinite(a)))
            if not np.allclose(a[:half], b[:half], rtol=near, atol=near * size, equal_nan=True):
                raise UsageError(
                    f"model {self.model.name} predicts {name} of a row from the other rows too, so predictions in "
                    "parts differ from those of all rows at once: give rows= at least as many as there are"
                )
        self._apart = True


def _named(names: Sequence[str], path: str) -> str:
    first, _, rest = path.partition(".")
    return f"{names[int(first)]}.{rest}" if rest else names[int(first)]


def _fitted(leaf: Any, spec: Spec | None, name: str) -> Any:
    """Convert to an array. Integers become floats where these are expected, exactly, but bytes may be an image."""
    if isinstance(leaf, (str, bytes)):
        raise UsageError(f"{name} is {brief(leaf)}; expected numbers: floats, integers or booleans")
    try:
        array = as_numpy(leaf)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    if array.dtype.kind not in "fiub" and not all(isinstance(each, (int, float, Fraction)) for each in array.flat):
        raise UsageError(f"{name} holds {array.dtype} values; expected numbers: floats, integers or booleans")
    whole = array.dtype.kind in "iu" and array.dtype != np.uint8
    floats = spec is not None and is_float(as_dtype(spec.dtype or "float32"))
    return array.astype(np.float64) if whole and floats else array
