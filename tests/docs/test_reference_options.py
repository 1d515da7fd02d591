"""What docs/reference.md says of options, values, compiled programs and lists, row by row."""

from __future__ import annotations

import dataclasses
from typing import get_args

import numpy as np
import pytest

import opstage
from opstage import Options, Param, Session, ShapeError, Spec, UsageError, init
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.graph import Graph, Recorder
from opstage.interpreters.graph.compiled import CompiledOps
from opstage.interpreters.graph.recorder import Variable
from opstage.interpreters.registry import make_interpreter
from opstage.ops.convolution import CONV, CONV_TRANSPOSE
from opstage.ops.elementwise import ADD
from opstage.ops.layout import BROADCAST_TO
from opstage.ops.pooling import MAX_POOL
from opstage.ops.reduction import REDUCE_SUM
from opstage.ops.splitmix import splitmix64
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import TensorType
from opstage.options import MatmulPrecision
from opstage.program_arguments import Program
from opstage.training.parameters import make_params
from opstage.training.session_tape import NatRef, NatVecRef
from opstage.transforms.tape import Node
from tests.docs.reference_claims import (
    AT,
    F32,
    F64,
    LOSS,
    Claim,
    Used,
    X,
    Y,
    close,
    compiled,
    compiled_out,
    infer,
    loss,
    on_tape,
    option,
    pair,
    refused,
    values,
)

CLAIMS: list[tuple[list[str], Claim]] = [
    # options and values
    (["Backend", "Options.backend"], option("backend", "eager", "compiled", "shape_check")),
    (["Backend.eager", "*eager Ops instance*"], lambda: type(make_interpreter(Options())) is NumpyOps and on_tape()),
    (["Backend.compiled"], lambda: type(make_interpreter(Options(backend="compiled"))) is CompiledOps),
    (["Device", "Options.device"], option("device", "cpu", "cuda", "cuda:1")),
    (
        ["Options"],
        lambda: (
            refused(dataclasses.FrozenInstanceError, lambda: setattr(Options(), "seed", 1))
            and Options.from_dict({"seed": 3}) == Options.from_env({"OPSTAGE_SEED": "3"}) == Options(seed=3)
        ),
    ),
    (
        ["Options.requiresGradByDefault"],
        lambda: (
            [
                (s := Session(Options(requires_grad_by_default=d))).param([1.0]).requires_grad
                == (s.input([1.0]).record is not None)
                == d
                for d in (True, False)
            ]
            == [True, True]
        ),
    ),
    (
        ["Options.seed"],
        lambda: (
            option("seed", 1)()
            and not np.array_equal(
                *[init.build(init.Declaration((4,), init.uniform(0, 1)), seed=seed) for seed in (1, 2)]
            )
        ),
    ),
    (
        ["Options.fastKernels"],
        lambda: close(
            *[opstage.run(loss, values(), X, Y, options=F64.replace(fast_kernels=fast)) for fast in (True, False)]
        ),
    ),
    (
        ["Options.fastGpuMatmulPrecision"],
        lambda: refused(UsageError, lambda: make_interpreter(Options(matmul_precision="tf32")), "needs device 'cuda'"),
    ),
    (["FastKernels.GpuMatmulPrecision"], lambda: get_args(MatmulPrecision) == ("fp32", "tf32", "bf16")),
    (
        ["Options.useGpu", "*set the device selector*"],
        lambda: Options().replace(device="cuda").use_gpu and not Options().use_gpu,
    ),
    (
        ["Options.strictCuda"],
        lambda: (
            Options(strict_cuda=False) != Options()
            and close(opstage.run(loss, values(), X, Y, options=F64.replace(strict_cuda=False)), LOSS)
        ),
    ),
    (["Torch.Core"], lambda: opstage.__name__ == "opstage"),
    (["Torch.Internal"], lambda: NumpyOps.__module__.startswith("opstage.interpreters")),
    (["Spec.Shape"], lambda: opstage.record(pair, Spec("N 2")).input_types[0].shape[1] == 2),
    (
        ["Spec.Tensor", "AnyTensor"],
        lambda: TensorType((2,), F32).shape == (2,) and opstage.run(lambda ops, x: x, AT).dtype == F32,
    ),
    (
        ["Shape.CanBroadcastTo"],
        lambda: (
            infer(BROADCAST_TO, (3,), shape=(2, 3)) == (2, 3)
            and refused(ShapeError, lambda: infer(BROADCAST_TO, (3,), shape=(2, 4)))
            and refused(ShapeError, lambda: infer(ADD, (3,), (2, 3)))
        ),
    ),
    (
        ["Shape.valid_axis_inst"],
        lambda: refused(ShapeError, lambda: opstage.run(lambda ops, x: ops.reduce_sum(x, axis=1), AT)),
    ),
    (["Tensor.shapeAfterSum"], lambda: infer(REDUCE_SUM, (3, 4), axes=(0,), keepdims=False) == (4,)),
    (
        ["Spec.convOutSpatial"],
        lambda: (
            opstage.run(
                lambda ops, k, x: ops.conv(k, None, x, stride=2, padding=1), np.ones((1, 1, 3)), np.ones((1, 8))
            ).shape
            == (1, 4)
        ),
    ),
    (
        ["Spec.convTransposeOutSpatial"],
        lambda: (
            opstage.run(
                lambda ops, k, x: ops.conv_transpose(k, None, x, stride=2, padding=1),
                np.ones((1, 1, 3)),
                np.ones((1, 8)),
            ).shape
            == (1, 15)
            and CONV.name != CONV_TRANSPOSE.name
        ),
    ),
    (
        ["Spec.poolOutSpatialPad"],
        lambda: (
            MAX_POOL.name == "max_pool"
            and opstage.run(lambda ops, x: ops.max_pool(x, kernel=(3,), stride=2, padding=1), np.ones((1, 8))).shape
            == (1, 4)
        ),
    ),
    (["SplitMix64"], lambda: splitmix64(0) == 0xE220A8397B1DCDAF),
    (
        ["TensorRef"],
        lambda: (
            opstage.run(lambda ops, x: ops.const(x.shape == (2,) and x.dtype == F32), AT) and isinstance(Used().y, Node)
        ),
    ),
    (["TensorRef.id"], lambda: Used().y.record.serial > Used().product.record.serial),  # type: ignore[union-attr]
    (["NatRef", "*Nat input*"], lambda: type(Used().number) is NatRef and Used().number.shape == ()),
    (
        ["NatVecRef", "*Nat vector input*"],
        lambda: type(Used().numbers) is NatVecRef and Used().numbers.dtype == np.int64,
    ),
    (["Param", "Param.name"], lambda: str(Param([1.0], name="w")) == "parameter w"),
    (
        ["Param.value", "*read the value with its shape*"],
        lambda: not (p := Param(AT)).value.flags.writeable and p.value.shape == p.shape,
    ),
    (["Param.cudaValue"], lambda: (ops := NumpyOps(F64)).get(Param(AT).mirror(ops)).tolist() == [1, 2]),
    (
        ["Param.requiresGrad", "AnyParam.requiresGrad"],
        lambda: Param(AT).requires_grad and refused(opstage.DtypeError, lambda: Param([1, 2])),
    ),
    (["AnyParam", "AnyParam.s"], lambda: (Param(AT).shape, Param(1.0).shape) == ((2,), ())),
    (
        ["*overwrite the value, checking its shape*"],
        lambda: (
            refused(ShapeError, lambda: Param(AT).set([1.0]))
            and refused(opstage.DtypeError, lambda: Param([1], requires_grad=False).set([1.5]))
        ),
    ),
    (
        ["AnyParam.setCuda", "*store the mirror of a parameter*"],
        lambda: (
            [
                (p := Param(AT, dtype="float64")).commit((ops := NumpyOps(F64)).put([5.0, 6.0]), ops),
                p.host_stale,
                p.value.tolist(),
            ][1:]
            == [True, [5, 6]]
        ),
    ),
    (
        ["*release a cached mirror*"],
        lambda: (
            [
                (p := Param(AT, dtype="float64")).commit((ops := NumpyOps(F64)).put([5.0, 6.0]), ops),
                p.release_mirror(),
                p.host_stale,
                p.value.tolist(),
            ][2:]
            == [False, [5, 6]]
        ),
    ),
    # compiled programs
    (
        ["CompiledScalar", "*evaluate the scalar*", "*compile a scalar builder*"],
        lambda: (
            [float((c := compiled()).forward(np.ones(n), 3)) for n in (1, 2, 5)] == [3, 6, 15]
            and type(c) is opstage.CompiledScalar
        ),
    ),
    (["CompiledScalar.ssPrev"], lambda: len(compiled().graph.body.types) > len(compiled().graph.body.equations)),
    (
        ["CompiledScalar.gPrev", "NodeData"],
        lambda: all(hasattr(e.primitive, "vjp") for e in compiled().graph.body.equations),
    ),
    (["CompiledScalar.node"], lambda: opstage.record(lambda ops, x: (x, ops.const(1.0)), AT).body.outputs != ()),
    (
        ["*alias of the tensor list over a context*", "TList", "*split a TList*", "*append, split, split the last*"],
        lambda: flatten({"b": [1, 2], "a": (3,)})[0] == [3, 1, 2],
    ),
    (["*JVP of the scalar*"], lambda: close(compiled().jvp((AT, np.array(3)), (np.ones(2), None)), (15.0, 18.0))),
    (["*backward with seed 1*"], lambda: close((g := compiled().backward(AT, 3))[0], 6 * AT) and g[1] is None),
    (["CompiledScalar.backwardWithSeed"], lambda: close(compiled().backward_with_seed(2.0, AT, 3)[0], 12 * AT)),
    (
        ["CompiledOut", "CompiledOut.forward", "*compile a tensor builder*"],
        lambda: (
            close(compiled_out().forward(AT), {"s": 3.0, "x": AT**2}) and type(compiled_out()) is opstage.CompiledOut
        ),
    ),
    (["CompiledOut.jvp"], lambda: close(compiled_out().jvp((AT,), (np.ones(2),))[1], {"s": 2.0, "x": 2 * AT})),
    (
        ["CompiledOut.vjpWithSeed"],
        lambda: (
            close(compiled_out().backward_with_seed(seed := {"s": 1.0, "x": np.ones(2)}, AT), (1 + 2 * AT,))
            and close(compiled_out().vjp(AT)[1](seed), (1 + 2 * AT,))
        ),
    ),
    (
        ["Compiled.GraphM", "*compiled Ops instance*", "GraphM.Var"],
        lambda: type(Recorder(F32, 0).input(TensorType((2,), F32))) is Variable,
    ),
    (
        ["GraphM.VarList", "RefList", "RefList.cons"],
        lambda: opstage.record(lambda ops, t: ops.sum(t["a"][0]), {"a": (AT,)}).input_names == ("t.a.0",),
    ),
    (["GraphData"], lambda: type(opstage.record(pair, AT)) is Graph),
    # lists and currying
    (["TList.append", "*curry, uncurry*"], lambda: unflatten(flatten([1, [2, 3]])[1], [4, 5, 6]) == [4, [5, 6]]),
    (
        ["Curried.Fn", "CurriedRef"],
        lambda: Program is not None and close(opstage.run(lambda ops, *xs: xs[1], 1.0, 2.0), 2.0),
    ),
    (["RefList.nil", "ParamList.nil"], lambda: flatten({})[0] == [] and make_params({}) == {}),
    (["ParamList.cons"], lambda: flatten(make_params({"a": [AT, {"b": AT.copy()}]}))[0][1].name == "a.1.b"),
    (["*apply to a VarList*"], lambda: close(opstage.run(pair, AT)["x"], AT**2)),
    (["Ops"], lambda: refused(TypeError, lambda: opstage.Ops())),  # type: ignore[abstract]
    (["Ops.Ref"], lambda: {"shape", "dtype"} <= set(dir(opstage.Ref)) and Used().y.shape == ()),
]


@pytest.mark.parametrize(("name", "claim"), [(name, claim) for names, claim in CLAIMS for name in names])
def test_a_row_says_what_happens(name: str, claim: Claim) -> None:
    assert claim()
