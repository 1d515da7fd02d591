"""`Session`: ops called one by one, on a tape that a backward pass can traverse at any time.

A training loop reads like this:

    session = Session(Options(seed=1))
    w = session.param(np.zeros((10, 784)), name="w")
    for x, y in batches:
        loss = session.cross_entropy(session.linear(session.use(w), None, session.input(x)), session.input(y))
        session.backward(loss)
        session.adam_step_all(1e-3)
        session.reset_tape()
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar, cast, final
from weakref import WeakKeyDictionary

from typing_extensions import deprecated, override

from .. import optim
from ..api import owned
from ..init import Constant
from ..interpreters.immediate import make_imperative
from ..ops.dispatch import Quietly
from ..ops.errors import (
    DeviceError,
    DtypeError,
    OpstageError,
    ProgramError,
    ProgramWarning,
    ShapeError,
    UsageError,
    a_type,
)
from ..ops.primitive import Primitive, Static
from ..ops.protocol import OPS
from ..ops.spec import Spec
from ..ops.tracebacks import called_by_users
from ..ops.types import DType, dtype_name, is_float, show_shape
from ..optim import Optimizer
from ..options import Options, options_of
from ..transforms.forward_mode import pushforward
from ..transforms.interpreter import Interpreter
from ..transforms.tape import Node
from ..transforms.transparent import Imperative, own_array
from .commit import Commit
from .param import Param, prepare_update
from .parameters import Given, together
from .session_tape import (
    Forgetful,
    Gradients,
    NatRef,
    Nats,
    NatVecRef,
    SessionTape,
    aligned,
    natural,
    naturals,
    own_nats,
    own_node,
    require_shape,
)
from .state import require_optimizer
from .step import UPDATE, update_parameters

Ref = Node[Any]
Handle = TypeVar("Handle", bound=Forgetful)

_RESET = "this ref was made before reset_tape(), which ended its tape; make it anew with input, leaf, const or use"


class _ParameterUse(NamedTuple):
    """A parameter on the tape: its leaf, and the version of the value in it."""

    node: Ref
    version: int


class _Slots:
    """The state of one optimizer for one parameter: steps taken, and slots (moments) as values of the store."""

    __slots__ = ("t", "values")

    def __init__(self, values: tuple[Any, ...]):
        self.t, self.values = 0, values


@final
class Session(Interpreter[Ref]):
    """An interpreter for code that is not a program. Every op of `Ops` is a method, and refs have the infix operators.

    The tape begins empty and is emptied by `reset_tape`, the boundary between training steps: refs, natural numbers and
    gradients end there, parameters and their moments live on. A call that fails leaves the session as it was.

    An eager session computes each op at once. With `Options(backend="compiled")` a session records: `get_value`,
    `grad`, `jvp_leaf`, `jvp_all` and the step methods compute what they need from the leaves, by a graph that is
    compiled once; and all leaves (`use`, `input`, `leaf`, `nat`, `nat_vec`) come before the first op.

    A tape is one thread's, that which begins it; any may take the session after `reset_tape`. Give each thread a
    session of its own: sessions may share parameters, and their steps wait for each other.

    Raises:
        ProgramError: a tensor of another session, or of before reset_tape.
        UsageError: input: values that are not numbers.
    """

    __slots__ = ("options", "_base", "_tape", "_used", "_gradients", "_slots", "_resets", "_given")

    def __init__(self, options: Options | None = None):
        """Create a session. Raises UsageError for a backend or device that is not available."""
        self.options = options_of(options)
        base: Imperative[Any] = make_imperative(self.options)
        self._base = base
        super().__init__(base.cursor, base.dtype, base.seed, depth=1, differentiates=True)
        self._slots: defaultdict[str, WeakKeyDictionary[Param, _Slots]] = defaultdict(WeakKeyDictionary)
        self._given = Given()
        self._resets = 0
        self._begin()
        self._tape.free()

    def _begin(self) -> None:
        self._base.begin(self._resets)
        self._tape = SessionTape(self._base)
        self.cursor = self._tape.cursor
        self._used: dict[Param, _ParameterUse] = {}
        self._gradients: Gradients | None = None

    def reset_tape(self) -> None:
        """End the tape and begin an empty one, one step further: random ops draw afresh, and reproducibly.

        Refs, natural numbers and gradients of the old tape are of no more use: their values are dropped, whoever still
        refers to them, and reading one is a ProgramError. Parameters keep their values, their mirrors on the device
        and their moments.
        """
        self._tape.take()
        ended = self._tape
        self._resets += 1
        self._begin()
        ended.close(_RESET)
        self._tape.free()

    def empty_cache(self) -> None:
        """Release the memory that is cached for the next ops; parameters, moments and refs stay."""
        self._base.empty_cache()

    @deprecated("Session.trim is now Session.empty_cache", stacklevel=2)
    def trim(self) -> None:
        """Do what `empty_cache` does, under its old name."""
        self.empty_cache()

    # Tensors in and out ---------------------------------------------------------------------------------------------

    def param(self, init: Any, name: str | None = None, requires_grad: bool | None = None) -> Param:
        """Create a parameter with a copy of `init`, floats in `Options.dtype`; it is not on the tape until it is used.

        `requires_grad` is by default `Options.requires_grad_by_default`. Raises DtypeError for integers that should
        take a gradient. Two parameters of one array are two; since one may have been meant, that is a ProgramWarning.
        """
        wanted = self.options.requires_grad_by_default if requires_grad is None else requires_grad
        if isinstance(init, Param):
            raise ProgramError(f"param makes a parameter, but got {init}; a Param is ready for use(…) as it is")
        made = Param(init, name=name, requires_grad=wanted, dtype=self.options.dtype)
        shared = self._given.take(init, made)
        if shared is not None:
            warnings.warn(ProgramWarning(str(shared), shared), stacklevel=3)  # skips the frame that folds tracebacks
        return made

    def use(self, param: Param) -> Ref:
        """Return the ref of a parameter on this tape: one leaf, however often it is used, so its gradient is the sum.

        A frozen parameter is a constant. Raises ProgramError when the value was replaced since the first use: what was
        computed from the old one and what will be from the new one do not belong on one tape.
        """
        if not isinstance(param, Param):
            raise ProgramError(f"use takes a Param but got {a_type(param)}; make one with session.param(…)")
        self._tape.take()
        use = self._used.get(param)
        if use is None:
            together([param])
            self._base.admit(f"use of {param}")
            value = self._base.lift(param.mirror(self._base.store))
            use = _ParameterUse(
                self._tape.leaf(value) if param.requires_grad else self._tape.wrap(value), param.version
            )
            self._used[param] = use
        elif use.version != param.version:
            raise ProgramError(f"{param} has a new value since it was used on this tape; call reset_tape() first")
        return use.node

    def input(self, value: Any, name: str | None = None, requires_grad: bool | None = None) -> Ref:
        """Return a copy of `value` on the tape: a leaf if it takes a gradient, else a constant. `name` is for messages.

        `requires_grad` is by default `Options.requires_grad_by_default` for floats; False saves the gradient of a batch
        that nobody reads. Integers and booleans are constants; with `requires_grad=True` they are a DtypeError.
        """
        what = f"input {name}" if name else "input"
        if requires_grad:
            return self._leaf(value, what)
        takes = requires_grad is None and self.options.requires_grad_by_default
        return (self._tape.leaf if takes else self._tape.wrap)(self._put(value, what))

    def leaf(self, value: Any) -> Ref:
        """Return a copy of `value` on the tape, whose gradient is wanted."""
        return self._leaf(value, "leaf")

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> Ref:
        return self._tape.const(value, dtype=dtype)

    def get_value(self, ref: Ref, shape: Sequence[int] | None = None) -> Any:
        """Return the value of a ref, an array that the caller owns (its type, on an interpreter without values).

        Raises ProgramError for a ref that is not of this session's live tape, ShapeError when it is not of `shape`.
        """
        self._tape.take()
        node = own_node(self._tape, ref, "get_value")
        if shape is not None:
            require_shape("get_value", "the ref", node.shape, tuple(shape))
        return owned(self._base.get(node.value))

    def _put(self, value: Any, what: str) -> Any:
        self._tape.take()
        base = self._base
        base.admit(what)
        try:
            return base.lift(base.store.put(value if isinstance(value, Spec) else own_array(value)))
        except DeviceError:  # not caused by the value
            raise
        except OpstageError as error:
            raise type(error)(f"{what}: {error}") from None

    def _leaf(self, value: Any, what: str) -> Ref:
        node = self._tape.leaf(self._put(value, what))
        if node.record is None:
            raise DtypeError(f"{what} is {dtype_name(node.dtype)}: only floats take a gradient", op=what.split()[0])
        return node

    # Natural numbers ------------------------------------------------------------------------------------------------

    def nat(self, value: int) -> NatRef:
        """Create a natural number that ops read as an index or label: an integer scalar without gradient."""
        self._tape.take()
        self._base.admit("nat")
        return self._note(NatRef(self._tape, natural("nat", value)))

    def nat_vec(self, values: Sequence[int]) -> NatVecRef:
        """Create a vector of natural numbers that ops read as indices or labels."""
        self._tape.take()
        self._base.admit("nat_vec")
        return self._note(NatVecRef(self._tape, naturals("nat_vec", values)))

    def get_nat(self, ref: NatRef) -> int:
        """Return the current number."""
        return int(self._nats(ref, NatRef, "get_nat").numbers)

    def get_nat_vec(self, ref: NatVecRef) -> Any:
        """Return the current numbers, an int64 array that the caller owns."""
        return self._nats(ref, NatVecRef, "get_nat_vec").numbers

    def set_nat(self, ref: NatRef, value: int) -> None:
        """Replace the number, for the ops that come after; in a recorded session for every later evaluation."""
        self._nats(ref, NatRef, "set_nat").put(natural("set_nat", value))

    def set_nat_vec(self, ref: NatVecRef, values: Sequence[int]) -> None:
        """Replace the numbers, as `set_nat` does. Raises ShapeError when there are more or fewer of them."""
        self._nats(ref, NatVecRef, "set_nat_vec").put(naturals("set_nat_vec", values))

    def _note(self, made: Handle) -> Handle:
        self._tape.note(made)
        return made

    def _nats(self, ref: Any, kind: type[Nats], op: str) -> Nats:
        self._tape.take()
        return own_nats(self._tape, ref, kind, op)

    # Interpreter methods ---------------------------------------------------------------------------------------------

    @override
    def adopt(self, ref: Any, /) -> Ref:
        return self._tape.adopt(ref)

    @override
    def bind1(self, primitive: Primitive, x: Ref, /) -> Ref:
        return self._tape.bind1(primitive, x)

    @override
    def bind2(self, primitive: Primitive, x: Ref, y: Ref, /) -> Ref:
        return self._tape.bind2(primitive, x, y)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Ref, ...], static: Static, /) -> tuple[Ref, ...]:
        return self._tape.bind(primitive, refs, static)

    @override
    def step(self) -> Ref:
        return self._tape.step()

    # Derivatives ----------------------------------------------------------------------------------------------------

    def backward(self, ref: Ref, seed: Any = None, dense: bool = True) -> Gradients:
        """Pull a cotangent of `ref` back through the tape; `grad` and the step methods read what it finds.

        seed    the cotangent, of ref's shape; a scalar needs none, and has 1
        dense   keep the gradient of every ref. Otherwise those of leaves and parameters alone: what backward has read
                is dropped as it goes, and this part of the tape cannot be gone through again

        Raises ShapeError for a tensor without seed or a seed of another shape, DtypeError for integers.
        """
        node = self._differentiable(ref, "backward", "the result")
        tape = self._tape
        if seed is not None:
            cotangent = aligned(self._base, seed, node, "backward", "seed")
        elif len(node.shape):
            raise ShapeError(
                f"the result is {show_shape(node.shape)}, no scalar: give a cotangent as seed=, or reduce it with sum",
                op="backward",
            )
        else:
            with Quietly(self.cursor):
                cotangent = self._base.full(shape=(), value=1.0, dtype=node.dtype)
        leaves = tape.leaves()
        retain = None if dense else {leaf.record for leaf in leaves if leaf.record is not None}
        found = tape.cotangents([node], [cotangent], retain=retain, keep=dense)
        used = {param: use.node for param, use in self._used.items()}
        self._gradients = self._note(Gradients(tape, self._base, found, used, leaves, dense=dense))
        return self._gradients

    def grad(self, ref: Ref | Param) -> Any:
        """Return the gradient of the last backward pass for a ref or parameter; see `Gradients`."""
        return self._last_gradients("grad")[ref]

    def jvp_leaf(self, ref: Ref, leaf: Ref, tangent: Any) -> Any:
        """Return the derivative of a computed ref when one leaf moves by `tangent`; see `jvp_all`."""
        return self.jvp_all(ref, {leaf: tangent})

    def jvp_all(self, ref: Ref, tangents: Mapping[Ref, Any]) -> Any:
        """Return the forward derivative J v of a computed ref when leaves move by their tangents, the others staying.

        Nothing is computed again: the tape's pullback is itself pulled back (`transforms.forward_mode`), so it costs
        about three backward passes. Raises ProgramError for what is not a leaf, and after a sparse backward pass.
        """
        node = self._differentiable(ref, "jvp", "the result")
        if not isinstance(tangents, Mapping):
            raise UsageError(f"jvp_all takes a tangent for each leaf, {{leaf: tangent}}, but got {a_type(tangents)}")
        moves = {}
        for leaf, tangent in tangents.items():
            record = self._differentiable(leaf, "jvp", "the leaf").record
            if record is None or record.primitive is not None:
                what = "is a constant" if record is None else "is the result of an op"
                raise ProgramError(f"jvp moves leaves, but this ref {what}; make it with leaf(…) or use(param)")
            moves[leaf] = aligned(self._base, tangent, leaf, "jvp", "tangent")
        return owned(self._base.get(pushforward(node, moves)))

    def _differentiable(self, ref: Any, op: str, what: str) -> Ref:
        self._tape.take()
        node = own_node(self._tape, ref, op)
        if not is_float(node.dtype):
            raise DtypeError(f"{what} is {dtype_name(node.dtype)}: only floats have derivatives", op=op)
        return node

    def _last_gradients(self, op: str) -> Gradients:
        self._tape.take()
        if self._gradients is None:
            raise ProgramError(
                f"{op} needs gradients, but there was no backward pass on this tape; call backward first"
            )
        return self._gradients

    # Steps ----------------------------------------------------------------------------------------------------------

    def sgd_step_all(self, lr: float) -> None:
        """p ← p - lr·g for every trained parameter that was used on this tape; all of them change, or none.

        The gradients are those of the last backward pass, zeros where it found none. Raises UsageError, before anything
        changes, for a learning rate that is negative or not finite.
        """
        self._step_all("sgd_step_all", optim.sgd(lr=lr))

    def adam_step_all(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        """Take an Adam step like `sgd_step_all`; t and the moments are stored per parameter, as long as the session
        lives."""
        self._step_all("adam_step_all", optim.adam(lr=lr, betas=(beta1, beta2), eps=eps))

    def adamw_step_all(
        self, lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        """Take an AdamW step (decoupled weight decay); its t and moments are not those of `adam_step_all`."""
        self._step_all("adamw_step_all", optim.adamw(lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay))

    def step_all(self, optimizer: Optimizer) -> None:
        """Take a step of any optimizer like `sgd_step_all`; t and slots are stored per parameter and name of the
        optimizer.

        The groups of `optim.grouped` go by the names of the parameters that were used on this tape.
        """
        require_optimizer(optimizer)
        self._step_all("step_all", optimizer)

    def _step_all(self, op: str, optimizer: Optimizer) -> None:
        gradients = self._last_gradients(op)
        nodes = {param: use.node for param, use in self._used.items() if use.node.record}
        trained = [param for param in nodes if param.requires_grad]
        together(trained).run(self._step, optimizer, nodes, trained, gradients)

    def _step(
        self, optimizer: Optimizer, nodes: Mapping[Param, Ref], params: Sequence[Param], gradients: Gradients
    ) -> None:
        """Update `params`, the trained ones among `nodes`; either all of them change or none."""
        base, store = self._base, self._base.store
        paths = {param: param.name or f"<{i}>" for i, param in enumerate(nodes)}
        optimizer = optimizer.bound([(path,) for path in paths.values()])
        members = [optimizer.at(paths[param]) for param in params]
        states = [self._find_slots(member, param) for member, param in zip(members, params)]

        def update(ops: Interpreter[Any]) -> tuple[list[Any], list[tuple[Any, ...]]]:
            values = [base.lift(param.mirror(store)) for param in params]
            pulled = [gradients.cotangent(nodes[param]) for param in params]
            slots = [tuple(map(base.lift, state.values)) for state in states]
            scalars = self._scalars(members, [state.t + 1 for state in states], [value.dtype for value in values])
            return update_parameters(ops, [member.updater for member in members], values, pulled, slots, scalars)

        values, slots = base.region(UPDATE, update)
        if not base.executes:
            return
        fetched = iter(base.fetch([*values, *chain.from_iterable(slots)], gradients.moment))
        values, slots = list(islice(fetched, len(values))), [tuple(islice(fetched, len(each))) for each in slots]
        store.raise_pending()
        commit = Commit()
        prepare_update(commit, params, values, store)
        for member, param, state, new in zip(members, params, states, slots):
            self._slots[member.name][param] = state  # one that is new says what none says: no step yet
            commit.set(state, "t", state.t + 1)
            commit.set(state, "values", new)
        commit.run()

    def _find_slots(self, optimizer: Optimizer, param: Param) -> _Slots:
        found, store = self._slots[optimizer.name].get(param), self._base.store
        if found is not None:
            return found
        declared = optimizer.slots(param.shape, param.dtype, str(param))
        return _Slots(
            tuple([store.fill(Constant(s.fill), cast("tuple[int, ...]", s.shape), s.dtype) for s in declared])
        )

    def _scalars(
        self, optimizers: Sequence[Optimizer], steps: Sequence[int], dtypes: Sequence[DType]
    ) -> list[dict[str, Any]]:
        """Return each parameter's scalars of its step; those that are the same are one ref."""
        base = self._base
        known: dict[tuple[int, int, DType], dict[str, Any]] = {}
        for optimizer, t, dtype in zip(optimizers, steps, dtypes):
            if (id(optimizer), t, dtype) not in known:
                made = {name: base.store.const(value, dtype=dtype) for name, value in optimizer.step_scalars(t).items()}
                known[id(optimizer), t, dtype] = {name: base.lift(scalar) for name, scalar in made.items()}
        return [known[id(optimizer), t, dtype] for optimizer, t, dtype in zip(optimizers, steps, dtypes)]


def _end_at_the_users_line() -> None:
    """Fold the tracebacks of the methods that users call on a session, outside of any program.

    The interpreter methods stay as they are: other interpreters call them, for every op.
    """
    own = {name for name, method in vars(Session).items() if callable(method) and not name.startswith("_")}
    for name in (OPS | own | {"scan", "cond", "switch", "while_loop", "region"}) - {"adopt", "bind", "bind1", "bind2"}:
        setattr(Session, name, called_by_users(getattr(Session, name)))


_end_at_the_users_line()
