"""`TorchModel`: a program of torch.export as a program over Ops, with its parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

from typing_extensions import override

from ...models.model import Model
from ...ops.dims import DimExpr, DimFloat
from ...ops.errors import UnsupportedError, UsageError, a_type
from ...ops.spec import Spec
from ...ops.types import BOOL, INT64
from ..model import LOST, ImportedModel, Problem, argument_name, require_importable
from ..network import Network, supervised
from ..values import TensorValue
from .graph import filled, leaf_names, leaves
from .program import Program, TorchRun, programmed


@final
@dataclass(frozen=True, eq=False)
class TorchModel(ImportedModel):
    """A PyTorch program, as a program over Ops: `model(ops, params, [state,] *inputs, train=False)` -> its outputs.

    name      that of the module's class
    params    its parameters, arrays by their names in the module's state_dict; a tied one has its first name
    state     the buffers that a run moves, such as running statistics; None for a model without. The program takes
              them after the parameters, and gives (outputs, state after this step)
    inputs    a tree of Specs for each argument of the module's forward, by its name
    outputs   a name for each output, of the keys and places that lead to it
    frozen    the parameters whose requires_grad was False
    ties      names of parameters that are another's too, and whose
    """

    kind: ClassVar[str] = "a PyTorch program"
    frozen: tuple[str, ...]
    ties: Mapping[str, str]
    _program: Program = field(repr=False)

    @property
    @override
    def network(self) -> Network:
        return Network(self.name, self.by_name, self.params, self.inputs, self.outputs, self.state)

    @override
    def __call__(self, ops: Any, params: Any, /, *rest: Any, train: bool = False) -> Any:
        """Return the outputs in the module's structure; with buffers a pair of those and the buffers after this
        step."""
        values, state = self._values(ops, params, rest, train, None)
        outputs = filled(self._program.output, lambda at: _output(ops, values[at]))
        return outputs if state is None else (outputs, state)

    def by_name(self, ops: Any, params: Any, /, *rest: Any, train: bool = False) -> Any:
        """Return the outputs by name, without those that are not tensors."""
        values, state = self._values(ops, params, rest, train, None)
        named = {name: _output(ops, values[at]) for at, name in leaf_names(self._program.output, self._alone())}
        outputs = {name: named[name] for name in self.outputs}
        return outputs if state is None else (outputs, state)

    def _alone(self) -> str:
        return "output" if not isinstance(self._program.output, dict) else ""

    def _values(
        self, ops: Any, params: Any, rest: Sequence[Any], train: bool, problems: list[Problem] | None
    ) -> tuple[list[Any], dict[str, Any] | None]:
        """Return the outputs as a list, and the buffers after this step."""
        state, inputs = self.taken(ops, rest)
        given: dict[int, Any] = {}
        for (name, template), tree in zip(self._program.arguments.items(), inputs):
            given.update(leaves(template, tree, name))
        program = self._program
        run = TorchRun(train=train, buffers=state, problems=problems, flags=program.flags, places=program.buffers)
        values = self._program.run(ops, run, params, state, given)
        return values, None if self.state is None else {**state, **run.moved}


def _output(ops: Any, value: Any) -> Any:
    """Return an output as a tensor; None for None."""
    if isinstance(value, TensorValue):
        return value.ref
    if value is None or value is LOST:
        return None
    if isinstance(value, bool):
        return ops.full(shape=(), value=value, dtype=BOOL)
    if isinstance(value, (int, DimExpr)):
        return ops.full(shape=(), value=value, dtype=INT64)
    if isinstance(value, (float, DimFloat)):
        return ops.full(shape=(), value=value)
    raise UnsupportedError(f"an output is {a_type(value)}; only tensors and numbers are outputs of programs")


def load(
    source: Any, *, sizes: Mapping[str, str] | None = None, where: Sequence[str] = (), name: str | None = None
) -> TorchModel:
    """A program of torch.export.export, or of a file of torch.export.save, as a program over Ops.

    sizes   other names for sizes that are open: `{"x_0": "batch"}`. A program knows the names of its torch.export.Dims;
            a file does not, and there a size is called after the first input and axis that it is of
    where   constraints on these sizes besides their ranges, which hold for a check: `"length >= 2"`
    name    of the model, by default that of the module's class

    Parameters and buffers are copies. Parameters are called as in the module's state_dict; buffers that a run moves
    are the state, others are constants. Float tensors are of the program's dtype, whatever the module's is.

    Raises UsageError for what is no such program or a damaged file, and UnsupportedError for ops that have no meaning
    here: one error that lists all of them. It needs the extra `torch`. Source: PyTorch's documentation of torch.export.

    Raises:
        UsageError: a file that is missing, damaged or no program; no package torch.
    """
    program = programmed(source, dict(sizes or {}))
    specs = dict(program.specs)
    inputs = _inputs(program, specs, (*program.where, *where))
    named = leaf_names(program.output, "" if isinstance(program.output, dict) else "output")
    outputs = tuple(each for at, each in named if at not in program.constants_out)
    called = name or program.name or (Path(source).stem if isinstance(source, (str, os.PathLike)) else "module")
    model = TorchModel(
        called, program.params, program.state or None, inputs, outputs, program.frozen, program.ties, program
    )

    def run(ops: Any, problems: list[Problem], params: Any, *rest: Any) -> Any:
        values, _ = model._values(ops, params, rest, False, problems)
        return [value.ref for value in values if isinstance(value, TensorValue)]

    require_importable(model, run)
    return model


def _inputs(program: Program, specs: dict[int, Spec], where: Sequence[str]) -> dict[str, Any]:
    """Return the trees of Specs by argument name; the first Spec has the constraints."""
    if where:
        if not specs:
            raise UsageError("where= constrains sizes of inputs; the program has none")
        first = min(specs)
        specs[first] = Spec(specs[first].shape, specs[first].dtype, tuple(where))
    trees: dict[str, Any] = {}
    for name, template in program.arguments.items():
        trees[argument_name(name, trees)] = filled(template, specs.get)
    return trees


# The model with a loss ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Settings for loading and training a program of torch.export.

    loss     cross_entropy, binary_cross_entropy (both of logits) or mse; left out, the model predicts only
    output   the output that is compared with the labels, by default the only one
    sizes    other names for open sizes, `x_0=batch`, and `where`: constraints on them, see `load`
    """

    loss: str = ""
    output: str = ""
    sizes: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


def trainable(model: TorchModel, config: Config) -> Model:
    """Return the Model of a program: see `opstage.interop.network.supervised`. Raises UsageError for an unknown loss,
    and UnsupportedError for inputs that are trees."""
    for name, spec in model.inputs.items():
        if not isinstance(spec, Spec):
            raise UnsupportedError(f"the input {name!r} is {a_type(spec)}; data are bound to single tensors")
    return supervised(model.network, config, loss=config.loss, output=config.output)


def configured(path: Path, config: Config) -> Model:
    """Return the Model of a file, loaded as `config` says."""
    sizes = {}
    for word in config.sizes:
        old, equals, new = word.partition("=")
        if not (old.strip() and equals and new.strip()):
            raise UsageError(f"model.sizes: {word!r} is not a name and another one, as in x_0=batch")
        sizes[old.strip()] = new.strip()
    return trainable(load(path, sizes=sizes, where=config.where), config)
