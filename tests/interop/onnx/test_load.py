"""An ONNX model as a program: named, checked for every size, the values of the runtime, differentiated and trained.

Inputs that the model does not declare are one error, since its numbers stand for the sizes that it was exported with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import AttributeProto, TensorProto, helper

import opstage
import opstage.onnx
from opstage import Options, Spec
from opstage.interop.model import require_declared
from opstage.interop.onnx.model import Config, trainable
from opstage.ops.errors import DtypeError, ShapeError, UnsupportedError, UsageError
from tests.interop.onnx.models import classifier, load, model, node

X = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)


def runtime(proto: Any, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def values(loaded: Any, *inputs: Any, **options: Any) -> list[Any]:
    trees = loaded.trees
    result = opstage.run(loaded, *trees, *inputs, options=Options(**options))
    return list((result if loaded.state is None else result[0]).values())


def test_weights_buffers_and_settings_are_told_apart() -> None:
    loaded = load(classifier())
    assert sorted(loaded.params) == ["head.weight", "layer.bias", "layer.weight", "norm.bias", "norm.weight"]
    assert loaded.state is not None and sorted(loaded.state) == ["norm.running_mean", "norm.running_var"]
    assert {name: str(spec) for name, spec in loaded.inputs.items()} == {"x": 'Spec("batch 4")'}
    assert loaded.outputs == ("logits",) and loaded.opset == 20


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_the_values_are_the_runtime_s_at_every_size(backend: str) -> None:
    proto = classifier()
    loaded = load(proto)
    assert loaded.check().ok
    for rows in (1, 5):
        (found,) = values(loaded, X[:rows], backend=backend)
        np.testing.assert_allclose(found, runtime(proto, x=X[:rows])[0], rtol=1e-5, atol=1e-6)


def test_training_moves_statistics_and_drops() -> None:
    loaded = load(classifier())
    outputs, state = opstage.run(loaded, loaded.params, loaded.state, X, train=True)
    plain, same = opstage.run(loaded, loaded.params, loaded.state, X)
    assert not np.allclose(outputs["logits"], plain["logits"])
    a = X @ loaded.params["layer.weight"].T + loaded.params["layer.bias"]
    assert loaded.state is not None
    for name, batch in (("norm.running_mean", a.mean(0)), ("norm.running_var", a.var(0))):
        np.testing.assert_array_equal(same[name], loaded.state[name])
        np.testing.assert_allclose(state[name], 0.9 * loaded.state[name] + 0.1 * batch, rtol=1e-4)


def test_a_loaded_model_is_trained_from_python() -> None:
    loaded = load(classifier())
    made = trainable(loaded, Config(loss="cross_entropy"))
    rng = np.random.default_rng(3)
    x = rng.standard_normal((64, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    trainer = opstage.scalar_trainer(made.loss, loaded.params, *made.batch, state=loaded.state)
    optimizer = opstage.optim.adam(lr=0.05)
    state = trainer.init_optim(optimizer)
    losses = [float(trainer.advance(optimizer, state, x, y).loss) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_its_metrics_leave_out_labels_that_are_ignored_and_count_each_place() -> None:
    rng = np.random.default_rng(4)
    weights = {"w": rng.standard_normal((4, 3)).astype(np.float32)}
    matmul = node("MatMul", ["x", "w"], ["z"])
    swap = node("Transpose", ["z"], ["logits"], perm=[0, 2, 1])
    loaded = load(model([matmul, swap], {"x": ["batch", 5, 4]}, ["logits"], weights))
    made = trainable(loaded, Config(loss="cross_entropy"))
    x = rng.standard_normal((6, 5, 4)).astype(np.float32)
    y = rng.integers(0, 3, (6, 5))
    y[:2], y[2, 1:] = -100, -100
    assert made.metrics is not None
    found = opstage.run(made.metrics, loaded.params, x, y)
    kept, z = y >= 0, x @ weights["w"]
    assert found["count"] == kept.sum() == 16
    assert found["accuracy"] == (z.argmax(axis=2) == y)[kept].sum()
    log_p = z - np.log(np.exp(z).sum(axis=2, keepdims=True))
    each = -np.take_along_axis(log_p, np.maximum(y, 0)[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(found["loss"], each[kept].sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "cross"}, "unknown loss 'cross'.*cross_entropy"),
        ({"loss": "mse", "output": "logit"}, "no output is called 'logit'.*logits"),
    ],
)
def test_settings_that_are_none(settings: Any, message: str) -> None:
    loaded = load(classifier())
    with pytest.raises(UsageError, match=message):
        trainable(loaded, Config(**settings))


def test_shapes_fold_in_the_arithmetic_of_dims() -> None:
    """What exporters write to flatten: shapes taken apart, computed with and put together again."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["b"], axis=0),
        node("Gather", ["shape", "one"], ["t"], axis=0),
        node("Mul", ["b", "t"], ["bt"]),
        node("Unsqueeze", ["bt", "zeros"], ["bt1"]),
        node("Concat", ["bt1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {"zero": np.array(0), "one": np.array(1), "zeros": np.array([0]), "rest": np.array([-1])}
    loaded = load(model(nodes, {"x": ["B", "T", 6]}, ["y"], weights))
    graph = opstage.record(loaded, loaded.params, *loaded.batch)
    assert str(graph.body.types[graph.body.outputs[0]]) == "(B*T, 6) float32"
    assert loaded.params == {}


def test_unnamed_and_odd_names_of_sizes_and_inputs() -> None:
    nodes = [node("Relu", ["input.1"], ["y"])]
    loaded = load(model(nodes, {"input.1": ["batch size", None, 3]}, ["y"]))
    assert {name: str(spec) for name, spec in loaded.inputs.items()} == {"input_1": 'Spec("batch_size input_1_1 3")'}


def test_sizes_that_a_file_leaves_open_are_each_their_own() -> None:
    """Writers of files put marks in place of names; a name means one size, and no other size takes it."""
    nodes = [node("Relu", ["x"], ["u"]), node("Relu", ["z"], ["v"])]
    for unknown in ("?", "", " ", "-1", "None", "unknown", "*", None):
        loaded = load(model(nodes, {"x": [unknown, unknown, "x_0", "T"], "z": ["T", unknown]}, ["u", "v"]))
        sizes = [str(size) for spec in loaded.inputs.values() for size in spec.entries]
        assert len(set(sizes)) == 5 and sizes[3] == sizes[4] == "T", (unknown, sizes)
        given = np.ones((2, 3, 4, 5), np.float32), np.ones((5, 6), np.float32)
        assert opstage.run(loaded, loaded.params, *given)["v"].shape == (5, 6)


def test_all_nodes_without_a_meaning_are_in_one_error() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Wobble", ["a"], ["b"], name="first", domain="mine"),
        node("Tanh", ["b"], ["c"]),
        node("NonMaxSuppression", ["a", "a"], ["d"], name="second"),
    ]
    proto = model(nodes, {"x": [2]}, ["c", "d"], domains=("mine",))
    with pytest.raises(UnsupportedError) as found:
        load(proto)
    assert "node 'first' (mine.Wobble): the operator is not known" in str(found.value)
    assert "node 'second' (NonMaxSuppression): the operator is not known" in str(found.value)
    assert "Tanh" not in str(found.value)


def test_an_input_that_says_a_shape_is_fixed() -> None:
    nodes = [node("Reshape", ["x", "shape"], ["y"])]
    proto = model(nodes, {"x": [6], "shape": (TensorProto.INT64, [2])}, ["y"])
    with pytest.raises(UnsupportedError, match="shape, its input 1, is computed from values"):
        load(proto)
    loaded = load(proto, fixed={"shape": np.array([2, 3])})
    assert [y.shape for y in values(loaded, np.arange(6.0))] == [(2, 3)]
    with pytest.raises(UsageError, match=r"no input is called 'shap'.*shape"):
        load(proto, fixed={"shap": np.array([2, 3])})


def test_outputs_that_are_kept_and_what_they_need() -> None:
    nodes = [
        node("Mul", ["x", "scale"], ["scaled"]),
        node("Tanh", ["scaled"], ["near"]),
        node("Unheard", ["scaled"], ["far"]),
        node("Add", ["near", "shift"], ["moved"]),
    ]
    weights = {"scale": np.array([2.0], np.float32), "shift": np.array([1.0, 2.0], np.float32)}
    data = model(nodes, {"x": ["n", 2]}, ["near", "far", "moved"], weights).SerializeToString()
    loaded = opstage.onnx.load(data, outputs=["near"])
    assert loaded.outputs == ("near",) and "shift" not in loaded.params
    np.testing.assert_allclose(values(loaded, X[:, :2])[0], np.tanh(2 * X[:, :2]), rtol=1e-6)
    assert opstage.onnx.load(data, outputs=["moved", "near"]).outputs == ("moved", "near")
    with pytest.raises(UnsupportedError, match="Unheard"):
        opstage.onnx.load(data)
    with pytest.raises(UsageError, match=r"no output is called 'nea'.*near.*moved"):
        opstage.onnx.load(data, outputs=["nea"])


def test_a_constraint_that_a_check_asks_for() -> None:
    nodes = [node("Pad", ["x", "pads"], ["y"], mode="reflect")]
    text = model(nodes, {"x": ["T"]}, ["y"], {"pads": np.array([64, 64])}).SerializeToString()
    report = opstage.onnx.load(text).check()
    assert not report.ok and 'where=["T >= 65"]' in str(report)
    assert opstage.onnx.load(text, where=["T >= 65"]).check().ok


def test_short_integers_wrap_around() -> None:
    nodes = [node("Add", ["x", "x"], ["y"])]
    proto = model(nodes, {"x": (TensorProto.UINT8, [3])}, ["y"])
    x = np.array([1, 128, 255], np.uint8)
    (found,) = values(load(proto), x)
    np.testing.assert_array_equal(found, x + x)


def test_a_function_of_the_file_is_taken_apart() -> None:
    body = [node("Mul", ["a", "a"], ["square"]), node("LeakyRelu", ["square"], ["b"])]
    reference = body[1].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", AttributeProto.FLOAT
    function = helper.make_function("mine", "Odd", ["a"], ["b"], body, [helper.make_opsetid("", 20)], ["slope"])
    nodes = [node("Odd", ["x"], ["y"], domain="mine", slope=0.1), node("Odd", ["y"], ["z"], domain="mine", slope=0.2)]
    proto = model(nodes, {"x": [3]}, ["z"], functions=[function], domains=("mine",))
    x = np.array([-1.0, 0.5, 2.0], np.float32)
    (found,) = values(load(proto), x)
    np.testing.assert_allclose(found, x**4, rtol=1e-6)


def test_nodes_in_any_order() -> None:
    nodes = [node("Neg", ["a"], ["y"]), node("Exp", ["x"], ["a"])]
    (found,) = values(load(model(nodes, {"x": [2]}, ["y"])), np.zeros(2))
    np.testing.assert_array_equal(found, [-1, -1])


def test_external_data_are_mapped(tmp_path: Path) -> None:
    import onnx

    proto, path = classifier(), tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="net.bin", size_threshold=0)
    loaded = opstage.onnx.load(path)
    plain = load(classifier())
    assert isinstance(loaded.params["layer.weight"], np.memmap)
    np.testing.assert_array_equal(values(loaded, X)[0], values(plain, X)[0])


def test_what_was_exported_comes_back() -> None:
    def program(ops: Any, params: Any, x: Any) -> Any:
        return ops.softmax(ops.layer_norm(ops.linear(params["w"], None, x), params["g"], None))

    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((8, 4)), "g": rng.standard_normal(8)}
    graph = opstage.record(program, params, Spec("B 4"), options=Options(dtype="float64"))
    from opstage.interop.onnx.export import model_of

    loaded = load(model_of(graph, {"params": params}))
    expected = opstage.run(program, params, X, options=Options(dtype="float64"))
    (found,) = values(loaded, X.astype(np.float64), dtype="float64")
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert sorted(loaded.params) == ["params.g", "params.w"]


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        ("Abs", [np.array([-128, 5], np.int8)], [-128, 5]),
        ("Div", [np.array([-(2**31), -7, 7], np.int32), np.array([2, 2, -2], np.int32)], [-(2**30), -3, -3]),
        ("ArgMin", [np.array([5, -(2**31), 3], np.int32)], [1]),
    ],
)
def test_the_least_integer_is_one_too(op: str, inputs: list[Any], expected: list[int]) -> None:
    elements = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    given = {f"x{i}": (element, x.shape) for i, (x, element) in enumerate(zip(inputs, elements))}
    proto = model([node(op, list(given), ["y"])], given, ["y"])
    for backend in ("eager", "compiled"):
        (found,) = values(load(proto), *inputs, backend=backend)
        np.testing.assert_array_equal(found, expected)


def test_a_bound_that_sizes_decide_the_sign_of() -> None:
    """Below 0 it counts from the end, as it does at N = 3 here; nothing is taken for granted."""
    nodes = [
        node("Shape", ["x"], ["n"]),
        node("Sub", ["n", "five"], ["end"]),
        node("Slice", ["x", "start", "end", "start"], ["y"]),
    ]
    text = model(nodes, {"x": ["N"]}, ["y"], {"five": np.array([5]), "start": np.array([0])}).SerializeToString()
    with pytest.raises(UnsupportedError, match="below 0, and so counted from the end, depends on the sizes"):
        opstage.onnx.load(text)
    assert opstage.onnx.load(text, where=["N >= 5"]).check().ok


@pytest.mark.parametrize(
    ("node", "element", "message"),
    [
        (node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16), TensorProto.FLOAT, "cast to bfloat16"),
        (node("Resize", ["x", "", "s"], ["y"], mode="linear"), TensorProto.UINT8, "integers are not resized"),
    ],
)
def test_what_would_not_round_as_the_file_says(node: Any, element: int, message: str) -> None:
    proto = model([node], {"x": (element, [4])}, ["y"], {"s": np.array([2], np.float32)})
    with pytest.raises(UnsupportedError, match=message):
        load(proto)


# Forms that exporters of real networks write and the node tests do not have -------------------------------------------

UINT8, INT8 = TensorProto.UINT8, TensorProto.INT8


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("channels", "group"), [(8, 1), (8, 4), (64, 1), (600, 1)], ids=str)
def test_integers_are_convolved_exactly(channels: int, group: int, dtype: str) -> None:
    """The greatest sums: of 72 products they are integers of float32, of 576 and of 5,400 they are not."""
    rng = np.random.default_rng(0)
    kernel = rng.integers(-128, 128, (4, channels // group, 3, 3)).astype(np.int8)
    kernel[0], kernel[1] = 127, -128
    x = rng.integers(0, 256, (2, channels, 4, 4)).astype(np.uint8)
    x[0] = 255
    made = node("ConvInteger", ["x", "w", "zero"], ["y"], group=group, pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    weights = {"w": kernel, "zero": np.uint8(3)}
    proto = model([made], {"x": (UINT8, ["n", channels, 4, 4])}, ["y"], weights, opset=10)
    loaded = load(proto)
    assert loaded.check().ok
    for backend in ("eager", "compiled"):
        (found,) = values(loaded, x, backend=backend, dtype=dtype)
        np.testing.assert_array_equal(found, runtime(proto, x=x)[0])


def test_a_quantised_convolution_adds_its_bias_as_an_integer() -> None:
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {
        "w": rng.integers(-128, 128, (3, 100, 3, 3)).astype(np.int8),
        "bias": np.array([2**24 + 1, -(2**25) - 1, 7], np.int32),
        "xs": np.float32(0.5), "xz": np.uint8(100), "ws": np.array([1e-5, 2e-5, 3e-5], np.float32),
        "wz": np.zeros(3, np.int8), "ys": np.float32(0.75), "yz": np.uint8(90),
    }  # fmt: skip
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"]
    proto = model([node("QLinearConv", inputs, ["y"])], {"x": (UINT8, ["n", 100, 6, 6])}, ["y"], weights)
    x = rng.integers(0, 256, (2, 100, 6, 6)).astype(np.uint8)
    loaded = load(proto)
    (found,) = values(loaded, x)
    np.testing.assert_array_equal(found, runtime(proto, x=x)[0])


@pytest.mark.parametrize(("start", "step"), [(0.0, 1.0), (2.0, 1.0), (0.0, 3.0)])
def test_a_range_of_floats_up_to_a_size(start: float, step: float) -> None:
    """The grids of detectors: a size, cast to floats, is still that size."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"]),
        node("Cast", ["n"], ["limit"], to=TensorProto.FLOAT),
        node("Range", ["start", "limit", "step"], ["y"]),
    ]
    weights = {"one": np.array(1), "start": np.float32(start), "step": np.float32(step)}
    proto = model(nodes, {"x": ["batch", "width"]}, ["y"], weights)
    loaded = load(proto)
    report = loaded.check()
    assert report.ok, report
    for width in (1, 2, 7):
        x = np.zeros((2, width), np.float32)
        for backend in ("eager", "compiled"):
            (found,) = values(loaded, x, backend=backend)
            np.testing.assert_array_equal(found, runtime(proto, x=x)[0])


def test_a_range_behind_a_fault_of_sizes_is_left_to_the_check() -> None:
    """The check says which constraint the sizes need; with it the range has a length."""
    nodes = [
        node("Add", ["x", "y"], ["z"]),
        node("Shape", ["z"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["n"]),
        node("Cast", ["n"], ["limit"], to=TensorProto.FLOAT),
        node("Range", ["start", "limit", "step"], ["r"]),
    ]
    weights = {"start": np.float32(0), "step": np.float32(1)}
    data = model(nodes, {"x": ["a"], "y": ["b"]}, ["r"], weights).SerializeToString()
    loaded = opstage.onnx.load(data)
    assert not loaded.check().ok
    held = opstage.onnx.load(data, where=["a == b"])
    assert held.check().ok
    x = np.ones(3, np.float32)
    assert opstage.run(held, held.params, x, x, options=Options(backend="compiled"))["r"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_statistics_in_float32_are_asked_for_by_their_number(op: str) -> None:
    weights = {"scale": np.linspace(0.5, 2, 5, dtype=np.float32)}
    inputs = {"x": ["n", 5]}
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)

    def proto(stash: int) -> Any:
        made = node(op, ["x", "scale"], ["y"], stash_type=stash)
        return model([made], inputs, ["y"], weights, opset=23)

    (found,) = values(load(proto(1)), x)
    np.testing.assert_allclose(found, runtime(proto(1), x=x)[0], rtol=1e-6, atol=1e-6)
    for short in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        with pytest.raises(UnsupportedError, match="statistics of short floats"):
            load(proto(short))


# Inputs that a model does not declare: one error, since its numbers stand for the sizes that it was exported with -----

F, INT = np.float32, np.int64


def _program(declared: dict[str, Any]) -> Any:
    def program(ops: Any, *given: Any) -> Any:
        require_declared(ops, "net", declared, given)
        return ops.full(shape=(), value=1.0)

    return program


GOOD: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "names": ({"x": Spec("B T"), "y": Spec("T")}, (np.ones((2, 3), F), np.ones(3, F))),
    "an expression": ({"x": Spec("B 2*B+1")}, (np.ones((3, 7), F),)),
    "an expression alone": ({"x": Spec("2*k+1"), "y": Spec("k")}, (np.ones(7, F), np.ones(3, F))),
    "steps that end": ({"x": Spec("min(k, 4)")}, (np.ones(4, F),)),
    "one that is not linear": ({"x": Spec("k*k")}, (np.ones(7, F),)),
    "1, which an exporter does not try": ({"x": Spec("B", where=["B >= 2"])}, (np.ones(1, F),)),
    "a tree": (
        {"x": {"a": Spec("B"), "b": [Spec("B 2", "int64")]}},
        ({"a": np.ones(3, F), "b": [np.ones((3, 2), INT)]},),
    ),
    "no axes": ({"x": Spec("")}, (np.float32(1),)),
    "none": ({"x": Spec("B 3")}, (np.ones((0, 3), F),)),
}
BAD: dict[str, tuple[dict[str, Any], tuple[Any, ...], type[Exception], str]] = {
    "a number": ({"x": Spec("B 8")}, (np.ones((4, 9), F),), ShapeError, r"x is .*\(4, 9\): axis 1 must have 8"),
    "a rank": ({"x": Spec("B 8")}, (np.ones((8,), F),), ShapeError, "ranks 2 and 1 differ"),
    "one name twice": (
        {"x": Spec("B T"), "y": Spec("T")}, (np.ones((2, 3), F), np.ones(4, F)), ShapeError, "axis 0 must have T = 3",
    ),
    "an expression": ({"x": Spec("B 2*B")}, (np.ones((3, 7), F),), ShapeError, r"axis 1 must have 2\*B = 6"),
    "an expression alone": ({"x": Spec("2*k")}, (np.ones(7, F),), ShapeError, r"axis 0 must have 2\*k = "),
    "beyond its greatest": ({"x": Spec("min(k, 4)")}, (np.ones(7, F),), ShapeError, r"must have min\(k, 4\) = 4"),
    "expressions alone": (
        {"x": Spec("2*k"), "y": Spec("3*k")}, (np.ones(6, F), np.ones(6, F)), ShapeError, r"y .* must have 3\*k = 9",
    ),
    "a constraint": (
        {"x": Spec("B", where=["B <= 16"])}, (np.ones(17, F),), ShapeError, "B <= 16, which does not hold of B = 17",
    ),
    "a multiple": ({"x": Spec("B", where=["B % 4 == 0"])}, (np.ones(6, F),), ShapeError, "does not hold of B = 6"),
    "a strict one": ({"x": Spec("B", where=["B < 6"])}, (np.ones(6, F),), ShapeError, "does not hold of B = 6"),
    "a least": ({"x": Spec("B", where=["B >= 5"])}, (np.ones(4, F),), ShapeError, "does not hold of B = 4"),
    "a leaf of a tree": ({"x": {"a": Spec("B 2")}}, ({"a": np.ones((3, 3), F)},), ShapeError, r"x\.a is declared"),
    "ints for floats": ({"x": Spec("B")}, (np.ones(3, INT),), DtypeError, "of floats, but is int64"),
    "floats for ints": ({"x": Spec("B", "int64")}, (np.ones(3, F),), DtypeError, "of integers, but is float32"),
}  # fmt: skip
BACKENDS = [Options(), Options(backend="compiled")]


@pytest.mark.parametrize("options", BACKENDS, ids=["eager", "compiled"])
@pytest.mark.parametrize("name", GOOD)
def test_declared_inputs_are_taken(name: str, options: Options) -> None:
    declared, given = GOOD[name]
    assert opstage.run(_program(declared), *given, options=options) == 1


@pytest.mark.parametrize("options", BACKENDS, ids=["eager", "compiled"])
@pytest.mark.parametrize("name", BAD)
def test_others_are_refused(name: str, options: Options) -> None:
    declared, given, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        opstage.run(_program(declared), *given, options=options)


def test_a_check_holds_its_own_specs_to_the_declared_ones() -> None:
    declared = {"x": Spec("B 8", where=["B <= 16"])}
    assert opstage.check(_program(declared), Spec("N 8", where=["N <= 12"])).ok
    assert opstage.check(_program(declared), declared["x"]).ok
    for spec in (Spec("N 8"), Spec("N M"), Spec("N 9", where=["N <= 12"])):
        assert not opstage.check(_program(declared), spec).ok


def test_a_fixed_size_of_a_file_is_no_other() -> None:
    """A mean is a sum divided by 8 in many a file: of 9 it would be another; onnxruntime refuses 9."""
    nodes = [node("ReduceSum", ["x", "axes"], ["s"]), node("Div", ["s", "eight"], ["y"])]
    constants = {"axes": np.array([1]), "eight": F(8)}
    loaded = load(model(nodes, {"x": ["B", 8]}, ["y"], constants))
    trees = loaded.trees
    assert float(opstage.run(loaded, *trees, np.ones((1, 8), F))["y"][0, 0]) == 1
    with pytest.raises(ShapeError, match="axis 1 must have 8; a size that is to be open"):
        opstage.run(loaded, *trees, np.ones((1, 9), F))


def test_a_name_of_a_file_may_stand_for_several_sizes() -> None:
    """PaddlePaddle's exporter calls height and width alike; sizes are those of the tensors."""
    nodes = [node("Shape", ["x"], ["s"]), node("Transpose", ["x"], ["t"], perm=[1, 0])]
    loaded = load(model(nodes, {"x": ["n", "n"]}, ["s", "t"]))
    found = opstage.run(loaded, loaded.params, np.ones((2, 3), F))
    assert found["s"].tolist() == [2, 3] and found["t"].shape == (3, 2)
