"""Run, differentiate and check programs, on the interpreter that the options name.

Every function here wraps the user's program in a *base program*, which is written against a base interpreter and nests
a tape or forward mode as needed, and passes that to the interpreter's `execute`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np
from typing_extensions import deprecated

from .interpreters.registry import empty_shared_caches, shared_interpreter
from .interpreters.shape_check.check import check_base_program, unusable, with_captured
from .interpreters.shape_check.report import Report
from .ops import transform
from .ops.array_conversion import as_numpy
from .ops.errors import DeviceError, OpstageError, UsageError, a_type
from .ops.spec import Claim, Spec, as_specs, read_claims, shapes_as_specs
from .ops.static_arguments import plain, plain_sequence
from .ops.tied_parameters import Places, is_identified
from .ops.tracebacks import called_by_users
from .ops.trees import Structure, flatten, lists_as_arrays, map_leaves, unflatten, with_scalars
from .options import Options, options_of
from .program_arguments import Program, argument_paths, bind_train, require_arguments, with_arrays
from .transforms.anomaly import watched
from .transforms.base_program import BaseProgram, Identity
from .transforms.derivatives import jvp as jvp_over
from .transforms.derivatives import run_on_tape
from .transforms.derivatives import value_and_grad as value_and_grad_over
from .transforms.derivatives import vjp as vjp_over
from .transforms.interpreter import BaseInterpreter

BaseFunction = Callable[..., Any]


@called_by_users
def run(program: Program, *args: Any, options: Options | None = None, train: bool = False) -> Any:
    """Return the value of `program(ops, *args)`, a pytree of NumPy arrays (of types, on an interpreter without values).

    Arguments are pytrees of arrays and numbers; floats are cast to `options.dtype`. A list of numbers, or a list of
    such lists, is one tensor, here and wherever arguments are passed, unless `shapes` declares a list of tensors; a
    tuple is always a tree. `train` is passed on to a program that has a keyword of that name.

    Raises:
        ProgramError: a program whose result is not a tensor, or that mixes interpreters.
        UsageError: an argument that is not an array of numbers; options that are not `Options`.
    """
    key = ("run", Identity(program), train)
    args = with_arrays(program, args)
    program = bind_train(program, train, args)

    return execute(value_base(program), args, options, program, key)


@called_by_users
def value_and_grad(
    program: Program, *args: Any, wrt: int | Sequence[int] = 0, options: Options | None = None, train: bool = False
) -> tuple[Any, Any]:
    """Return the value of a scalar program and its gradients, shaped like `args[wrt]` (a tuple of them when wrt is a
    tuple).

    Every leaf of a tree has its own gradient: an array that is in two leaves counts as two arguments, and the
    derivative with respect to both together is the sum of their gradients.

    Raises:
        ProgramError: a result of integers.
        ShapeError: a program that returns no scalar.
        UsageError: wrt that names no argument.
    """
    wrt = plain_sequence(wrt)
    wrt = tuple([plain(position) for position in wrt]) if isinstance(wrt, (tuple, list)) else wrt
    key = ("value_and_grad", Identity(program), train, wrt)
    require_arguments("value_and_grad", "value_and_grad(program, x)", args)
    args = with_arrays(program, args)
    program = bind_train(program, train, args)
    positions = wrt if isinstance(wrt, tuple) else (wrt,)
    for position in positions:
        if not isinstance(position, int) or isinstance(position, bool):
            raise UsageError(f"wrt is the position of an argument, or a tuple of positions, not {wrt!r}")
        if not 0 <= position < len(args):
            raise UsageError(f"wrt={wrt} is out of range: the program got {len(args)} arguments")

    value, grads = execute(gradient_base(program, positions), args, options, program, key)
    return value, grads[0] if isinstance(wrt, int) else grads


@called_by_users
def vjp(
    program: Program, *args: Any, options: Options | None = None, train: bool = False
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return `(value, pullback)`; `pullback(cotangent)` is a tuple aligned with args, None for integers.

    The pullback runs forward and backward as one program, on copies of the arguments made now, so that it works the
    same on every interpreter; `vjp` itself runs only the forward part, for the value.

    Raises:
        ShapeError: a cotangent of another shape.
    """
    key = ("vjp", Identity(program), train)
    require_arguments("vjp", "vjp(program, x)", args)
    args = with_arrays(program, args)
    base = vjp_base(bind_train(program, train, args))
    args = map_leaves(snapshot, args)
    value = run(program, *args, options=options, train=train)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        if flatten(cotangent)[1] != flatten(value)[1]:
            cotangent = lists_as_arrays(cotangent)
        result: tuple[Any, ...] = execute(base, (args, cotangent), options, program, key)
        return result

    return value, pullback


@called_by_users
def jvp(
    program: Program,
    args: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    options: Options | None = None,
    train: bool = False,
) -> tuple[Any, Any]:
    """Return `(value, J · tangents)`; tangents are shaped like args, None where zero (and for integers).

    Raises:
        ShapeError: tangents of other shapes or another number.
    """
    key = ("jvp", Identity(program), train)
    require_arguments("jvp", "jvp(program, (x,), (tangent,))", args, tangents)
    args, tangents = with_arrays(program, args), with_arrays(program, tangents)
    program = bind_train(program, train, tuple(args))
    result: tuple[Any, Any] = execute(jvp_base(program), (tuple(args), tuple(tangents)), options, program, key)
    return result


@called_by_users
def hvp(
    program: Program,
    args: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    options: Options | None = None,
    train: bool = False,
) -> Any:
    """Return the Hessian-vector product of a scalar program, forward over reverse: a tuple shaped like args, None for
    integers.

    Raises:
        ShapeError: a program that returns no scalar; tangents of other shapes.
    """
    key = ("hvp", Identity(program), train)
    require_arguments("hvp", "hvp(program, (x,), (tangent,))", args, tangents)
    args, tangents = with_arrays(program, args), with_arrays(program, tangents)
    program = bind_train(program, train, tuple(args))
    return execute(hvp_base(program), (tuple(args), tuple(tangents)), options, program, key)


def empty_cache() -> None:
    """Release the memory that `run`, `value_and_grad` and similar functions cache between calls.

    With backend "compiled" they cache, for each set of options, an arena as large as the largest program needed.
    Compiled code stays. A trainer, a session and the result of `compile` each have their own `empty_cache`. PyTorch:
    torch.cuda.empty_cache.
    """
    empty_shared_caches()


@deprecated("opstage.trim is now opstage.empty_cache")
def trim() -> None:
    """Do what `empty_cache` does, under its old name."""
    empty_cache()


def check(
    program: Program,
    *specs: Any,
    options: Options | None = None,
    train: bool = True,
    claims: Sequence[Claim | str] = (),
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> Report:
    """Check shapes and dtypes of `program(ops, *specs)` without data. Raises nothing: problems are in the report.

    Specs are pytrees of `Spec`, arrays, and tuples of sizes. A name stands for the same size in all of them. A Param in
    several places is one tensor. `claims` are statements about what the outputs depend on, such as `Causal("T")` of
    `opstage.facts` or the text "causal:T": the verdicts are in `Report.claims`, and each claim that is not proved is an
    error. `bounds` are the ones of `ranges_of`: if the scores have bounds, masks of finite numbers can be
    decided.

    Raises:
        UsageError: options that are none; a string that is not a claim; bounds that are none, or of no input; what is
            wrong with the program is in the report.
    """
    stated = read_claims(claims)
    options = options_of(options)
    try:
        specs = with_arrays(program, specs)
        written, program = program, bind_train(program, train, specs)
        trees = tuple(shapes_as_specs(spec) for spec in specs)
        places = Places.of(trees)
        leaves = places.first(flatten(tuple(as_specs(tree) for tree in trees))[0])
        names = argument_paths(program, trees)
    except UsageError as error:
        return unusable("Spec", error)

    value = value_base(program)

    def base(ops: Any, *refs: Any) -> Any:
        return value(ops, *places.tree(refs))

    first = len(Places.of(trees[0])) if trees else 0
    tied = tuple(places.groups(names))
    report = check_base_program(
        base, leaves, places.first(names), options, parameters=first, tied=tied, written=written
    )
    report = with_captured(report, program)
    if not stated:
        return report
    from .facts import with_claims

    return with_claims(report, stated, bounds)


# Batches, and derivatives by all elements or for each example ---------------------------------------------------------


def vmap(
    program: Program, in_axes: Any = 0, out_axes: Any = 0, chunk: int | None = None, draws: str = "each"
) -> Program:
    """Return the program that runs the program of one example on a batch, for `run`, `check`, `compile` and others.

    See `opstage.transform.vmap` for the arguments; `in_axes` has an entry for each argument behind `ops`. As jax.vmap.

    Raises:
        UsageError: a program that is not a function; other settings.
    """
    from .transforms.batching import require_settings  # late: few processes call vmap

    require_settings(program, chunk, draws)

    @wraps(program)
    def batched(ops: Any, *trees: Any, **keywords: Any) -> Any:
        one = partial(program, **keywords) if keywords else program
        return transform.vmap(ops, one, *trees, in_axes=in_axes, out_axes=out_axes, chunk=chunk, draws=draws)

    return batched


def remat(program: Program) -> Program:
    """Return the program with its backward pass running it again, in place of keeping intermediate values.

    The result is a program, and a block to call inside another one: `block(ops, params, x)`. See `Ops.remat`.

    Raises:
        UsageError: a program that is not a function.
    """
    if not callable(program):
        raise UsageError(f"remat: expected a function f(ops, *args), got {a_type(program)}")

    @wraps(program)
    def recomputed(ops: Any, *trees: Any, **keywords: Any) -> Any:
        return ops.remat(partial(program, **keywords) if keywords else program, *trees)

    return recomputed


@called_by_users
def jacobian(
    program: Program,
    *args: Any,
    wrt: int = 0,
    options: Options | None = None,
    train: bool = False,
    chunk: int | None = None,
) -> Any:
    """Return ∂value/∂args[wrt]: the tree of the value, each leaf a tree like the argument, shaped (*output, *input).

    The backward passes for all elements of the value run together, or `chunk` at a time. PyTorch: torch.func.jacrev.

    Raises:
        DtypeError: a value of integers.
        UsageError: wrt that names no argument, or one of integers.
    """
    return _derivative("jacobian", transform.jacobian, program, args, wrt, chunk, options, train)


@called_by_users
def hessian(
    program: Program,
    *args: Any,
    wrt: int = 0,
    options: Options | None = None,
    train: bool = False,
    chunk: int | None = None,
) -> Any:
    """Return ∂²value/∂args[wrt]² of a scalar program: a tree of trees like the argument, with leaves (*leaf, *leaf).

    The Hessian-vector products for all elements of the argument run together, or `chunk` at a time. PyTorch:
    torch.func.hessian.

    Raises:
        ProgramError: a program that returns no scalar.
        UsageError: wrt that names no argument, or one of integers.
    """
    return _derivative("hessian", transform.hessian, program, args, wrt, chunk, options, train)


def _derivative(
    name: str, of: Any, program: Program, args: Any, wrt: int, chunk: int | None, options: Options | None, train: bool
) -> Any:
    require_arguments("jacobian", "jacobian(program, x)", args)
    key = (name, Identity(program), train, wrt, chunk)
    args = with_arrays(program, args)
    if not isinstance(wrt, int) or isinstance(wrt, bool) or not 0 <= wrt < len(args):
        raise UsageError(f"wrt is the position of one of {len(args)} arguments, not {wrt!r}")
    for leaf in map(as_numpy, flatten(args[wrt])[0]):
        if leaf.dtype.kind != "f":
            raise UsageError(
                f"argument {wrt}: expected leaves of floats, got one of {leaf.dtype}. Convert it to a float"
            )
    program = bind_train(program, train, args)

    def every(ops: Any, *trees: Any) -> Any:
        return of(ops, program, *trees, wrt=wrt, chunk=chunk)

    return execute(value_base(every), args, options, program, key)


@called_by_users
def per_sample_gradients(
    program: Program,
    params: Any,
    *batch: Any,
    options: Options | None = None,
    train: bool = False,
    chunk: int | None = None,
) -> Any:
    """Return the gradient of `program(ops, params, *batch)` for each sample: a tree like params, of shape (N, *leaf).

    The program gets batches of one sample, with the leading axis kept. All run together, or `chunk` at a time. PyTorch:
    torch.func.vmap(torch.func.grad(…)).

    Raises:
        ProgramError: a program that returns no scalar for one sample.
        ShapeError: batches that share no leading size.
    """
    key = ("per_sample_gradients", Identity(program), train, chunk)
    args = with_arrays(program, (params, *batch))
    program = bind_train(program, train, args)

    def of_sample(ops: Any, params: Any, *sample: Any) -> Any:
        rows = map_leaves(lambda leaf: ops.unsqueeze(leaf, axis=0), sample)
        return transform.grad(ops, lambda inner, tree: program(inner, tree, *rows), params)

    each = vmap(of_sample, (None, *[0] * len(batch)), chunk=chunk)
    return execute(value_base(each), args, options, program, key)


# Base programs, one for each way of running a program ---------------------------------------------------------------


def value_base(program: Program) -> BaseFunction:
    """Build (ops, *args) -> the program's value."""
    program = _on_lists(program)

    def base(ops: BaseInterpreter[Any], *trees: Any) -> Any:
        _, _, outputs, structure = run_on_tape(ops, program, trees, (False,) * len(trees))
        return unflatten(structure, [node.value for node in outputs])

    return base


def gradient_base(program: Program, positions: tuple[int, ...]) -> BaseFunction:
    """Build (ops, *args) -> the program's value, a scalar, and a tuple of its gradients for the arguments at
    `positions`."""
    program = _on_lists(program)

    def base(ops: BaseInterpreter[Any], *trees: Any) -> Any:
        return value_and_grad_over(ops, program, *trees, wrt=positions)

    return base


def vjp_base(program: Program) -> BaseFunction:
    """Build (ops, args, cotangent of the value) -> a tuple of the cotangents of args."""
    program = _on_lists(program)

    def base(ops: BaseInterpreter[Any], arguments: Any, cotangent: Any) -> Any:
        return vjp_over(ops, program, *arguments)[1](cotangent)

    return base


def jvp_base(program: Program) -> BaseFunction:
    """Build (ops, args, tangents) -> the program's value, and its tangent."""
    program = _on_lists(program)

    def base(ops: BaseInterpreter[Any], primals: Any, moves: Any) -> Any:
        return jvp_over(ops, program, primals, moves)

    return base


def hvp_base(program: Program) -> BaseFunction:
    """Build (ops, args, tangents) -> a tuple of the tangents of the gradients, forward over reverse."""
    program = _on_lists(program)

    def gradient(inner: Any, *trees: Any) -> Any:
        return value_and_grad_over(inner, program, *trees, wrt=tuple(range(len(trees))))[1]

    def base(ops: BaseInterpreter[Any], primals: Any, moves: Any) -> Any:
        return jvp_over(ops, gradient, primals, moves)[1]

    return base


def _on_lists(program: Program) -> Program:
    """Wrap lists of scalars in the program's arguments, so that they are not taken for tensors."""

    def called(ops: Any, *trees: Any) -> Any:
        return program(ops, *map(with_scalars, trees))

    return called


# Implementation -----------------------------------------------------------------------------------------------------


def execute(
    base: Callable[..., Any], args: tuple[Any, ...], options: Options | None, program: Program, key: Hashable = None
) -> Any:
    """Put pytrees into the interpreter, run a base program on them, get its result; `key` identifies the base
    program."""
    options = options_of(options)
    options.require_one_rank("this")
    interpreter = watched(shared_interpreter(options), options)
    leaves, structure = flatten(args)
    refs = put_all(interpreter, leaves, lambda: argument_paths(program, args))
    return execute_on_leaves(interpreter, base, refs, structure, key)


def execute_on_leaves(
    interpreter: BaseInterpreter[Any],
    base: Callable[..., Any],
    refs: tuple[Any, ...],
    structure: Structure,
    key: Hashable = None,
) -> Any:
    """Run `base(ops, *trees)` on pytrees of a structure whose leaves are the interpreter's values: its result."""
    program = BaseProgram(base, structure, key)
    outputs = interpreter.execute(program, refs)
    assert program.result is not None
    return unflatten(program.result, all_owned(interpreter.get, outputs))


def put_all(interpreter: BaseInterpreter[Any], leaves: list[Any], names: Callable[[], list[str]]) -> tuple[Any, ...]:
    """Convert all leaves to values of the interpreter; an error names the argument."""
    refs = []
    for i, leaf in enumerate(leaves):
        try:
            refs.append(interpreter.put(leaf))
        except DeviceError:  # not the argument's fault
            raise
        except OpstageError as error:
            why = f"it is a {leaf}; pass its value" if is_identified(leaf) else str(error)
            raise type(error)(f"argument {names()[i]}: {why}") from None
    return tuple(refs)


def snapshot(leaf: Any) -> Any:
    """Copy an argument, so that later changes by the caller do not matter."""
    return leaf if isinstance(leaf, Spec) else np.array(as_numpy(leaf))


def owned(value: Any) -> Any:
    """Return an array that shares no memory with the program's arguments or with anything that the program keeps."""
    if not isinstance(value, np.ndarray):
        return value
    try:
        return np.array(value)
    except MemoryError as error:  # of a view, which took none before
        from .interpreters.eager_cpu.memory import as_out_of_memory

        raise as_out_of_memory(error) from None


def all_owned(get: Callable[[Any], Any], values: tuple[Any, ...]) -> list[Any]:
    """Return `owned` arrays of values that nobody else needs; one that this tuple alone holds is not copied.

    A view has a base, and an array that has views, or that a program, an argument or another result holds too, is
    counted more often.
    """
    return [
        array
        if count <= _ALONE and isinstance(array, np.ndarray) and array.base is None and array.flags.owndata
        else owned(array)
        for array, count in _counted(get, values)
    ]


def _counted(get: Callable[[Any], Any], values: tuple[Any, ...]) -> Iterator[tuple[Any, int]]:
    for value in values:
        array = get(value)
        yield array, sys.getrefcount(array)


_ALONE = next(_counted(lambda value: value, (np.empty(0),)))[1]


__all__ = [
    "check",
    "empty_cache",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "per_sample_gradients",
    "remat",
    "run",
    "value_and_grad",
    "vjp",
    "vmap",
]
__dir__ = __all__.copy
