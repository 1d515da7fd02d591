"""Trees of parameters: making, reading, writing and casting them, and one plain SGD step of a whole tree.

A Param at several places of a tree is one parameter (`ops.tied_parameters`): it has one flag, one value and one
gradient, and results for it are one object at all of its places.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import numpy as np

from ..init import Declaration, Plan
from ..init.plan import place
from ..interpreters.registry import make_interpreter
from ..interpreters.shape_check.finding import Finding
from ..ops.array_conversion import as_numpy
from ..ops.errors import ShapeError, UsageError
from ..ops.host_arrays import find_owner
from ..ops.tied_parameters import Places
from ..ops.trees import align, flatten, paths, show_path, structure_paths, unflatten
from ..ops.types import as_dtype, dtype_name, is_float, show_shape
from ..optim.descent import Sgd
from ..optim.groups import flags_by_rules, is_pattern
from ..optim.hyperparameters import require_nonnegative
from ..options import Options, options_of
from ..transforms.interpreter import BaseInterpreter
from .commit import Commit, LockSet, SharedLock
from .param import Array, Param, prepare_update

if TYPE_CHECKING:
    from ..models import Model


# Arrays that share memory at two places of a tree ---------------------------------------------------------------------
#
# A `Param` is one parameter wherever it is (`ops.tied_parameters`). An array is a value that a parameter copies, so one
# array at two places may be meant as one tied parameter or as two with the same initial value. It is rejected or
# reported, never guessed.

RULE = "shared-array"
FIX = "make one Param of it and put that at both places for one parameter, or give one of them a copy for two"

_SHOWN = 4
_SWEEP = 256  # arrays between sweeps that drop dead entries
_WORK = 10_000  # candidates that NumPy may examine to decide whether two strided views overlap


class Shared(NamedTuple):
    """Two places of a tree with leaves that share memory; `same`: they are the same view of it."""

    first: str
    second: str
    same: bool

    def __str__(self) -> str:
        how = "are one array" if self.same else "are arrays that share memory"
        return f"{show_path(self.first)} and {show_path(self.second)} {how}"


def shared_arrays(tree: Any) -> list[Shared]:
    """Return the places of a tree with arrays that share memory with one at an earlier place, each once.

    A Param counts by its host value, since an array may be a view of it; a Param at two places is not reported.
    """
    leaves, _ = flatten(tree)
    known: dict[int, Array | None] = {}  # an array of another library may return a new copy each time
    arrays = [known[id(leaf)] if id(leaf) in known else known.setdefault(id(leaf), _memory(leaf)) for leaf in leaves]
    held = [i for i, array in enumerate(arrays) if array is not None and array.size]
    found: dict[int, int] = {}
    for i, j in _overlapping([arrays[i] for i in held], held):
        if not (isinstance(leaves[i], Param) and isinstance(leaves[j], Param)):
            first, second = min(i, j), max(i, j)
            found[second] = min(first, found.get(second, first))
    names = paths(tree) if found else []
    return [Shared(names[i], names[j], _same(arrays[i], arrays[j])) for j, i in sorted(found.items())]


def require_apart(tree: Any) -> None:
    """Raise a UsageError, with the places, if two arrays of a parameter tree share memory."""
    found = shared_arrays(tree)
    if found:
        shown = "; ".join(map(str, found[:_SHOWN])) + (f"; and {len(found) - _SHOWN} more" if found[_SHOWN:] else "")
        raise UsageError(f"parameters {shown}: {FIX}")


def shared_findings(tree: Any) -> tuple[Finding, ...]:
    """Return the same as warnings of a check, in which arrays may only stand for their shapes."""
    return tuple(
        Finding(
            f"params.{shared.second}".removesuffix("."),
            f"{shared}; they are checked as two parameters, and a trainer refuses them",
            rule=RULE,
            severity="warning",
            fix=FIX,
        )
        for shared in shared_arrays(tree)
    )


def _memory(leaf: Any) -> Array | None:
    """Return an array over the leaf's memory, or None if nothing could share that: numbers, Specs."""
    if isinstance(leaf, Param):
        return leaf.host
    if isinstance(leaf, np.ndarray):
        return leaf
    if isinstance(leaf, np.generic) or not hasattr(leaf, "__array__"):
        return None
    try:
        return np.asarray(leaf)  # another library's array: a view, if its memory is on the host
    except Exception:
        return None


def _overlapping(arrays: Sequence[Any], numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs that share memory, by index; arrays with disjoint bounds are never compared."""
    bounds = sorted((*np.lib.array_utils.byte_bounds(array), k) for k, array in enumerate(arrays))
    open_: list[tuple[int, int]] = []  # arrays that end after the current start: (end, index)
    for start, end, k in bounds:
        open_ = [(stop, other) for stop, other in open_ if stop > start]
        for _, other in open_:
            if _share(arrays[other], arrays[k]):
                yield numbers[other], numbers[k]
        open_.append((end, k))


def _share(a: Any, b: Any) -> bool:
    try:
        return np.shares_memory(a, b, max_work=_WORK)  # type: ignore[arg-type]  # NumPy takes any number
    except np.exceptions.TooHardError:
        return True  # undecidable in reasonable time


def _same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.strides == b.strides and a.dtype == b.dtype and a.ctypes.data == b.ctypes.data)


class _View(NamedTuple):
    """The memory layout of an array's elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    contiguous: bool
    nbytes: int

    @classmethod
    def of(cls, array: Array) -> _View:
        return cls(array.ctypes.data, array.shape, array.strides, array.flags.forc, array.nbytes)

    def meets(self, other: _View) -> bool:
        """Return whether both are the same array, or blocks of memory that overlap."""
        if not (self.contiguous and other.contiguous):
            return self == other
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


_Made: TypeAlias = "tuple[weakref.ref[Any] | None, list[tuple[_View, str]]]"
_NOBODY: _Made = (None, [])


@final
class Given:
    """The arrays from which parameters were created one by one, tracked while the owner of their memory lives."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, _Made] = {}

    def take(self, value: Any, param: Param) -> Finding | None:
        """Record that `param` was created from `value`; return a warning if another was created from the same
        memory."""
        if not isinstance(value, np.ndarray) or not value.size:
            return None
        owner = find_owner(value)
        known, made = self._known.get(id(owner), _NOBODY)
        if known is None or known() is not owner:  # another array lived at this address before
            if len(self._known) % _SWEEP == 0:
                self._known = {key: entry for key, entry in self._known.items() if entry[0] and entry[0]() is not None}
            made = []
            self._known[id(owner)] = weakref.ref(owner), made
        view = _View.of(value)
        other = next((name for seen, name in made if view.meets(seen)), None)
        made.append((view, str(param)))
        if other is None:
            return None
        return Finding(
            "param",
            f"{param} is created from the array, or a part of the array, of {other}; they are two parameters",
            rule=RULE,
            severity="warning",
            fix="use one Param in both places for one parameter, or give a copy of the array for two",
        )


# Making, reading and writing ------------------------------------------------------------------------------------------


def requires_grad_flags(params: Any, requires_grad: Any, options: Options) -> list[bool]:
    """Return one flag per parameter, from flags aligned with the tree, or from a flat list in the order in which
    its parameters were written.

    A dict of flags by patterns or prefixes of paths, `{"*.bias": False, "encoder": False}`, sets the parameters that
    match, see `optim.groups.apply_rules`; the others keep their defaults.

    Raises UsageError, naming the parameter, if the flags do not fit, or differ between the places of one parameter.
    """
    leaves, structure = flatten(params)
    places = Places.among(structure, leaves)
    if requires_grad is None:
        default = options.requires_grad_by_default
        return places.first([leaf.requires_grad if isinstance(leaf, Param) else default for leaf in leaves])
    if isinstance(requires_grad, (bool, np.bool_)):
        return [bool(requires_grad)] * len(places)
    if isinstance(requires_grad, (list, tuple)) and all(isinstance(flag, (bool, np.bool_)) for flag in requires_grad):
        requires_grad = [bool(flag) for flag in requires_grad]
        given, names = places.columns(requires_grad), [places.paths[place] for place in places.written]
        if given is None:
            at = len(requires_grad)
            where = f"; the first parameter without one is {show_path(names[at])}" if at < len(names) else ""
            raise UsageError(f"requires_grad has {at} flags for {len(names)} parameters{where}")
        return places.agreed(given, "flags requires_grad")
    if isinstance(requires_grad, Mapping) and _are_rules(requires_grad, places.all_paths):
        usual = requires_grad_flags(params, None, options)
        return flags_by_rules(requires_grad, places.all_paths, usual, prefixes=True)
    flags = align(structure, requires_grad, "the parameters", "requires_grad")
    for path, flag in zip(places.paths, flags):
        if not isinstance(flag, (bool, np.bool_)):
            raise UsageError(f"requires_grad of {show_path(path)} must be a bool but is {flag!r}")
    return places.agreed([bool(flag) for flag in flags], "flags requires_grad")


def _are_rules(flags: Mapping[Any, Any], paths: Sequence[tuple[str, ...]]) -> bool:
    """Return whether a dict has flags by patterns or prefixes of paths. A dict of whole paths only is a tree of flags,
    which must cover every parameter."""
    if any(map(is_pattern, flags)):
        return True
    plain = bool(flags) and all(isinstance(key, str) and isinstance(flag, bool) for key, flag in flags.items())
    return plain and not {path for each in paths for path in each}.issuperset(flags)


def as_param(leaf: Any, name: str, requires_grad: bool, options: Options) -> Param:
    """Return a new Param from `leaf`: floats in the options' dtype; integer tables are never trained."""
    if isinstance(leaf, Param):
        leaf.requires_grad = requires_grad
        return leaf
    try:
        array = as_numpy(leaf)
    except UsageError as error:
        raise UsageError(f"{show_path(name)}: {error}") from None
    return Param(array, name=name, requires_grad=requires_grad and array.dtype.kind in "fO", dtype=options.dtype)


def make_params(values: Any, *, requires_grad: Any = None, options: Options | None = None) -> Any:
    """Return a tree of Params from a tree of arrays, each named by its path. Arrays are copied; Params are kept.

    Raises UsageError for arrays of one memory at two places.
    """
    options = options_of(options)
    require_apart(values)
    leaves, structure = flatten(values)
    places = Places.among(structure, leaves)
    flags = requires_grad_flags(values, requires_grad, options)
    return places.tree([as_param(x, n, f, options) for x, n, f in zip(places.first(leaves), places.names, flags)])


def plan_params(plan: Plan, parameters: Any, options: Options) -> Any:
    """Return a tree like `parameters` (anything with shapes) of Params that the plan initialises.

    Each is created on the interpreter that first uses it. Raises UsageError if the plan does not fit, and for arrays
    that share memory.
    """
    require_apart(parameters)
    placements = plan.placements(parameters, seed=options.seed)
    flags = requires_grad_flags(parameters, None, options)
    return Places.of(parameters).tree(
        [
            Param.planned(placement, dtype=options.dtype, name=placement.path, requires_grad=flag)
            for placement, flag in zip(placements, flags)
        ]
    )


def together(params: Sequence[Param]) -> LockSet:
    """Return the locks of parameters that are used together; those without one get a new common lock."""
    locks = [param.lock for param in params if param.lock is not None] or [SharedLock()]
    for param in params:
        if param.lock is None:
            param.lock = locks[0]
    return LockSet(locks)


def get_values(params: Any) -> Any:
    """Return the values of a tree of Params as arrays that the caller owns, fetched from a device if needed.

    A Param at several places gives one array, which is read-only.
    """
    leaves, structure = flatten(params)
    places = Places.among(structure, leaves)
    return together(leaves).run(lambda: places.arrays([np.array(param.value) for param in places.first(leaves)]))


def set_values(params: Any, values: Any, *, seed: int = 0) -> None:
    """Overwrite a tree of Params. Structure, shapes and values are checked before anything changes.

    values   a tree of arrays; or a Plan, whose values are created on the interpreter that uses each parameter next
    seed     the base seed of a plan's initialisers that have none

    Raises UsageError where the places of one Param are given values that differ in any bit.
    """
    leaves, structure = flatten(params)
    places = Places.among(structure, leaves)
    firsts: list[Param] = places.first(leaves)
    agreed: Sequence[Any]
    if isinstance(values, Plan):
        agreed = values.placements(params, seed=seed)
        for param, placement in zip(firsts, agreed):
            if not is_float(param.dtype):
                raise UsageError(f"{show_path(placement.path)} is {dtype_name(param.dtype)}, and a plan makes floats")
    else:
        new = align(structure, values, "the parameters", "the new values")
        agreed = places.agreed([param.checked(value) for param, value in zip(leaves, new)], "values", same_bits)

    def put_in_place() -> None:
        commit = Commit()
        for param, value in zip(firsts, agreed):
            param.prepare(commit, value)
        commit.run()

    together(leaves).run(put_in_place)


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two arrays are bitwise equal: nan equals nan, and 0 is not -0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((a == b).all()) if a.dtype.kind == "O" else a.tobytes() == b.tobytes()


def cast(tree: Any, dtype: str) -> Any:
    """Return the tree with its floating leaves in another dtype; integers and masks are kept. Params become new Params.

    A leaf at several places has one result at all of them.
    """
    target = as_dtype(dtype)

    def cast_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Param):
            return Param(leaf.value, name=leaf.name, requires_grad=leaf.requires_grad, dtype=target)
        array = as_numpy(leaf)
        if not is_float(array.dtype):
            return array
        return Param(array, requires_grad=False, dtype=target).value.copy()

    leaves, structure = flatten(tree)
    made: dict[int, Any] = {}
    return unflatten(
        structure, [made[id(x)] if id(x) in made else made.setdefault(id(x), cast_leaf(x)) for x in leaves]
    )


def sgd_step(params: Any, lr: float, grads: Any, *, options: Options | None = None) -> None:
    """Update p ← p - lr·g for every Param that requires a gradient, op by op.

    `grads` is aligned with `params`, None at frozen ones; structure and shapes are checked before anything changes. A
    Param at several places has one gradient: one array at all of them, as `ScalarTrainer.backward` returns it, or at
    one of them and None at the others. Raises UsageError for different arrays there, such as the per-place gradients of
    `value_and_grad`: the gradient is their sum.
    """
    _sgd_step(params, lr, grads, options, fused=False)


def sgd_step_fast(params: Any, lr: float, grads: Any, *, options: Options | None = None) -> None:
    """Do the same as `sgd_step`, bit for bit, by the interpreter's fused kernel."""
    _sgd_step(params, lr, grads, options, fused=True)


def _sgd_step(params: Any, lr: float, grads: Any, options: Options | None, *, fused: bool) -> None:
    lr = require_nonnegative("sgd_step", "lr", lr)
    leaves, structure = flatten(params)
    places = Places.among(structure, leaves)
    pairs = _aligned(leaves, places, structure.flatten_up_to(_checked(structure, params, grads)))
    if not pairs:
        return
    dtype = {param.dtype.name for param, _ in pairs}
    options = options_of(options).replace(dtype="exact" if "object" in dtype else next(iter(dtype)))
    interpreter = make_interpreter(options)
    refs = [ref for param, grad in pairs for ref in (param.mirror(interpreter), interpreter.put(grad))]
    rate = interpreter.put(np.asarray(lr))

    update = Sgd().updater if fused else Sgd().update

    def program(ops: BaseInterpreter[Any], lr_ref: Any, *inputs: Any) -> tuple[Any, ...]:
        scalars = {"lr": lr_ref}
        return tuple([update(ops, p, g, (), scalars)[0] for p, g in zip(inputs[::2], inputs[1::2])])

    updated = interpreter.execute(program, (rate, *refs))
    commit = Commit()
    prepare_update(commit, [param for param, _ in pairs], updated, interpreter)
    commit.run()


def _checked(structure: Any, params: Any, grads: Any) -> Any:
    try:
        structure.flatten_up_to(grads)
    except ValueError as error:
        raise UsageError(f"the gradients are not built like the parameters: {error}") from None
    return grads


def _aligned(params: Sequence[Param], places: Places, grads: Sequence[Any]) -> list[tuple[Param, Any]]:
    pairs = []
    for param, name, grad in zip(places.first(params), places.names, _gradients(places, grads)):
        if not param.requires_grad:
            continue
        if grad is None:
            raise UsageError(f"parameter {show_path(name)} requires a gradient but is given None")
        if tuple(np.shape(grad)) != param.shape:
            raise ShapeError(
                f"the gradient of {show_path(name)} is {show_shape(np.shape(grad))} but the parameter is "
                f"{show_shape(param.shape)}",
                op="sgd_step",
            )
        pairs.append((param, grad))
    return pairs


def _gradients(places: Places, grads: Sequence[Any]) -> list[Any]:
    """Return the gradient of each parameter, from the gradients given at its places."""
    found: list[Any] = [None] * len(places)
    at: dict[int, str] = {}
    for path, owner, grad in zip(places.paths, places.owners, grads):
        if grad is None or grad is found[owner]:
            continue
        if found[owner] is not None:
            raise UsageError(
                f"{show_path(at[owner])} and {show_path(path)} are one parameter, but are given two gradients; if they "
                "are those of the places, add them, and give the sum at one place, None at the other"
            )
        found[owner], at[owner] = grad, path
    return found


def first_trees(model: Model, options: Options) -> tuple[Any, Any]:
    """Return the initial parameters and state of a model, `first_params` and `first_values`; the state is None for a
    model without one."""
    state = None if model.state is None else first_values(model.state, options)
    return first_params(model.init, options), state


def first_params(tree: Any, options: Options) -> Any:
    """Return a tree of new Params from a model's tree of declarations, arrays or Params, which stays unchanged.

    A Param at several places is one Param in the result, which starts at its present value.
    """
    require_apart(tree)
    leaves, structure = flatten(tree)
    places = Places.among(structure, leaves)

    def made(leaf: Any, name: str) -> Param:
        if isinstance(leaf, Declaration):
            first = place(leaf.initialiser, leaf.shape, name, seed=options.seed)
            return Param.planned(first, dtype=options.dtype, name=name, requires_grad=options.requires_grad_by_default)
        if isinstance(leaf, Param):
            return as_param(np.array(leaf.value), name, leaf.requires_grad, options)
        return as_param(leaf, name, options.requires_grad_by_default, options)

    return places.tree([made(leaf, name) for leaf, name in zip(places.first(leaves), places.names)])


def first_values(tree: Any, options: Options) -> Any:
    """Return a tree of new arrays from a program's state, a tree of declarations or arrays, which stays unchanged."""
    leaves, structure = flatten(tree)

    def made(leaf: Any, name: str) -> Any:
        if isinstance(leaf, Declaration):
            return place(leaf.initialiser, leaf.shape, name, seed=options.seed).materialise(options.dtype)
        return np.array(as_numpy(leaf))

    return unflatten(structure, [made(leaf, name) for leaf, name in zip(leaves, structure_paths(structure))])
