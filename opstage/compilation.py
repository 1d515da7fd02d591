"""`record` and `compile`: a program traced once, for arguments with known shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from typing_extensions import deprecated, override

from .api import (
    BaseFunction,
    execute_on_leaves,
    gradient_base,
    hvp_base,
    jvp_base,
    put_all,
    snapshot,
    value_base,
    vjp_base,
)
from .interpreters.graph.graph import Graph
from .interpreters.graph.program_cache import record_pure
from .interpreters.graph.recorder import record as record_base
from .interpreters.registry import make_interpreter
from .interpreters.shape_check.contract import Contract
from .ops.dims import DimScope
from .ops.errors import UsageError
from .ops.hints import Renamed
from .ops.spec import as_specs
from .ops.tracebacks import called_by_users
from .ops.trees import flatten, map_leaves, output_names, structure_paths, unflatten
from .ops.types import as_dtype, is_float
from .options import Options, options_of
from .program_arguments import Program, argument_paths, batch_arguments, bind_train, with_arrays, with_train
from .threads import make_lock
from .transforms.anomaly import watched
from .transforms.base_program import BaseProgram


@called_by_users
def record(program: Program, *specs: Any, options: Options | None = None, train: bool = False) -> Graph:
    """The graph of `program(ops, *specs)`, without computing anything: typed equations to inspect, save or export.

    Specs are pytrees of `Spec`, arrays, and tuples of sizes; a name stands for the same size in all of them, and stays
    a name in the graph. Inputs are named after the program's parameters, `params.w1`; outputs `output`, or `output.0`
    in a tree. A program that draws random numbers has a last input `step`, the number of the training step. Of the
    options only dtype and seed matter. Raises what the program raises: a ShapeError at the line of an op, a
    ProgramError where the structure of the program depends on values.

    Raises:
        ShapeError: a program whose shapes are wrong.
        UsageError: Specs that do not fit the arguments.
    """
    specs = with_arrays(program, specs)
    return _recorded(program, specs, options_of(options), train, record_base)


def _recorded(
    program: Program, specs: tuple[Any, ...], options: Options, train: bool, recorder: Callable[..., Graph]
) -> Graph:
    """See `record`; `recorder` records a base program."""
    program = bind_train(program, train, specs)
    arguments = batch_arguments(program, skip=1)
    if arguments is not None and (lacking := arguments.required[len(specs) :]):
        raise UsageError(
            f"the program takes {', '.join(arguments.required)}, but there is no Spec for {', '.join(lacking)}; give "
            "one for each argument in its order, such as opstage.Spec('batch 4')"
        )
    trees = tuple(as_specs(spec) for spec in specs)
    leaves, structure = flatten(trees)
    scope, dtype = DimScope(), as_dtype(options.dtype)
    types = [spec.bind(scope, dtype) for spec in leaves]
    for spec in leaves:
        spec.declare(scope)
    base = BaseProgram(value_base(program), structure)
    graph = recorder(base, types, dtype, options.seed, argument_paths(program, trees))
    assert base.result is not None
    return Graph(graph.body, graph.input_names, output_names(base.result), dtype, options.seed)


@called_by_users
def compile(
    program: Program, *specs: Any, options: Options | None = None, train: bool = False
) -> CompiledScalar | CompiledOut:
    """The compiled form of `program(ops, *specs)`: a `CompiledScalar` if it returns one float, else a `CompiledOut`.

    Specs are as for `record`; the arguments of every call are checked against them. The program is recorded at once, so
    its errors are raised here. Machine code is generated at the first call: once for each method (forward, backward, …)
    and each signature, the shapes and dtypes of the arguments. Options are the same as for any run, except `backend`,
    which is always "compiled".

    Raises:
        ShapeError: a program whose shapes are wrong.
        UsageError: Specs that do not fit the arguments.
    """
    options = options_of(options).replace(backend="compiled")
    specs = with_arrays(program, specs)
    graph = _recorded(program, specs, options, train, lambda *base: record_pure(*base)[0])
    (kind, *more) = graph.output_types or (None,)
    scalar = kind is not None and not more and not len(kind.shape) and is_float(kind.dtype)
    made = CompiledScalar if scalar and graph.output_names == ("output",) else CompiledOut
    return made(with_train(program, train), specs, graph, options)


class _Compiled(Renamed):
    """The base of both forms.

    graph     the recorded program, symbolic where the Specs are
    options   the options that it runs with
    """

    graph: Graph
    options: Options

    def __init__(self, program: Program, specs: tuple[Any, ...], graph: Graph, options: Options):
        """See `compile`."""
        self.graph = graph
        self.options = options
        self._program = program
        options.require_one_rank("a compiled program")
        self._interpreter = watched(make_interpreter(options), options)
        self._turn = make_lock()
        self._contract = _CallContract(specs, argument_paths(program, _trees(specs)), "the compiled program", "call")

    @called_by_users
    def forward(self, *args: Any) -> Any:
        """The value, a pytree of arrays. A list of numbers is an array where there is one Spec for it.

        Raises ShapeError or DtypeError for arguments that do not match the Specs.
        """
        return self._call("forward", value_base(self._program), args)

    @called_by_users
    def __call__(self, *args: Any) -> Any:
        """The same as `forward`."""
        return self.forward(*args)

    def backward_with_seed(self, seed: Any, *args: Any) -> tuple[Any, ...]:
        """Jᵀ · seed at args: a tuple aligned with args, None for integers; the seed is shaped like the value."""
        result: tuple[Any, ...] = self._call("backward_with_seed", vjp_base(self._program), args, seed=seed)
        return result

    def vjp(self, *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        """`(value, pullback)`; `pullback(seed)` is `backward_with_seed` on copies of the arguments made now."""
        args = map_leaves(snapshot, self._contract.arrays(args))
        return self.forward(*args), lambda seed: self.backward_with_seed(seed, *args)

    def jvp(self, args: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        """`(value, J · tangents)`; tangents are shaped like args, None where zero and for integers."""
        result: tuple[Any, Any] = self._call("jvp", jvp_base(self._program), tuple(args), tangents=tuple(tangents))
        return result

    def empty_cache(self) -> None:
        """Release the memory that is cached between calls; compiled code stays."""
        self._interpreter.empty_cache()

    @deprecated("CompiledOut.trim is now CompiledOut.empty_cache")
    def trim(self) -> None:
        """Do what `empty_cache` does, under its old name."""
        self.empty_cache()

    def _call(self, method: str, base: BaseFunction, args: tuple[Any, ...], **extra: Any) -> Any:
        """The result of `base(ops, *args)`, or of `base(ops, args, tree)` with an `extra` tree, on the host."""
        with self._turn:  # threads may share the program
            return self._call_locked(method, base, args, **extra)

    def _call_locked(self, method: str, base: BaseFunction, args: tuple[Any, ...], **extra: Any) -> Any:
        interpreter = self._interpreter
        leaves, structure = flatten(args)
        if any(type(leaf) in (int, float, bool) for leaf in leaves):
            args = self._contract.arrays(args)
            leaves, structure = flatten(args)
        if "tangents" in extra:
            extra["tangents"] = self._contract.arrays(extra["tangents"])
        refs = put_all(interpreter, leaves, lambda: argument_paths(self._program, args))
        self._contract.check(args, leaves, refs)
        trees: tuple[Any, ...] = unflatten(structure, refs)
        for name, tree in extra.items():
            more, within = flatten(tree)
            found = put_all(interpreter, more, lambda: [f"{name}.{p}" if p else name for p in structure_paths(within)])
            trees = (trees, unflatten(within, found))
        given, structure = flatten(trees)
        return execute_on_leaves(interpreter, base, tuple(given), structure, key=method)


@final
class CompiledOut(_Compiled):
    """A compiled program with any outputs, made by `opstage.compile`.

    Raises:
        ShapeError: an argument of another shape than its Spec.
    """


@final
class CompiledScalar(_Compiled):
    """A compiled program whose value is one float, made by `opstage.compile`: it has a gradient.

    Raises:
        ShapeError: an argument of another shape than its Spec.
        UsageError: another number of arguments, or one that is no array of numbers.
    """

    @called_by_users
    def backward(self, *args: Any) -> tuple[Any, ...]:
        """The gradients at args: a tuple aligned with args, None for integers."""
        positions = tuple(range(len(args)))
        gradients = gradient_base(self._program, positions)
        result: tuple[Any, ...] = self._call("backward", lambda ops, *trees: gradients(ops, *trees)[1], args)
        return result

    @called_by_users
    def hvp(self, args: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """Hessian-vector product: a tuple shaped like args, None for integers."""
        result: tuple[Any, ...] = self._call("hvp", hvp_base(self._program), tuple(args), tangents=tuple(tangents))
        return result


def _trees(specs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(as_specs(spec) for spec in specs)


class _CallContract(Contract):
    """The Specs of a compiled program's arguments."""

    @override
    def unforeseen(self, batch: tuple[Any, ...]) -> None:
        if batch:
            raise UsageError(f"this program was compiled without arguments, and got {len(batch)}")


__all__ = ["CompiledOut", "CompiledScalar", "compile", "record"]
__dir__ = __all__.copy
