"""Options: defaults, validation of every value, and where each error says that a value came from."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from opstage.config import Layer
from opstage.ops.errors import UsageError
from opstage.options import Options, read_option
from opstage.runs.settings import configure

DEFAULTS = {
    "backend": "eager",
    "device": "cpu",
    "dtype": "float32",
    "seed": 0,
    "requires_grad_by_default": True,
    "fast_kernels": True,
    "matmul_precision": "fp32",
    "cuda_graphs": "auto",
    "strict_cuda": True,
    "validate": True,
    "detect_anomaly": False,
    "deterministic": True,
    "program_memory": "128MiB",
    "mesh": "",
    "zero": 0,
    "bucket_size": "1MiB",
    "accumulate": 1,
    "timeout": 60,
}
BOOLEANS = [name for name, value in DEFAULTS.items() if isinstance(value, bool)]


@pytest.mark.parametrize("variable", ["OPSTAGE_TRACEBACK", "OPSTAGE_KERNEL_CACHE"])
def test_variables_of_the_process_are_no_options(variable: str) -> None:
    assert Options.from_env({variable: "full"}) == Options()


def test_fields_and_defaults() -> None:
    assert dataclasses.asdict(Options()) == DEFAULTS


def test_is_frozen_hashable_and_comparable() -> None:
    options = Options(seed=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 4  # type: ignore[misc]
    assert {options: 1}[Options(seed=3)] == 1
    assert options != Options()
    assert pickle.loads(pickle.dumps(options)) == options


def test_use_gpu_follows_the_device() -> None:
    assert not Options().use_gpu
    assert Options(device="cuda").use_gpu


def test_any_registered_name_may_be_a_backend() -> None:
    assert Options(backend="op_counter").backend == "op_counter"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("backend", "", "option backend: '' is not the name of an interpreter; expected a string such as 'eager'"),
        ("backend", None, "option backend: None is not the name of an interpreter"),
        ("device", "gpu", "option device: 'gpu' is not one of 'cpu', 'cuda' (did you mean 'cpu'?)"),
        ("device", 0, "option device: 0 is not one of 'cpu', 'cuda'"),
        ("dtype", "flaot32", "'float32', 'float64', 'exact' (did you mean 'float32'?)"),
        ("matmul_precision", "tf23", "'tf23' is not one of 'fp32', 'tf32', 'bf16' (did you mean 'tf32'?)"),
        ("cuda_graphs", "allways", "'allways' is not one of 'auto', 'always', 'never' (did you mean 'always'?)"),
        ("seed", -1, "option seed: -1 is not a seed; expected an integer with 0 <= seed < 2^64"),
        ("seed", 2**64, "is not a seed"),
        ("seed", True, "option seed: True is not a seed"),
        ("seed", 1.0, "option seed: 1.0 is not a seed"),
        ("zero", 1, "option zero: 1 is not a level of ZeRO; expected 0, 2 or 3"),
        ("timeout", 0, "option timeout: 0 is not a number of seconds; expected an integer from 1 to"),
        ("timeout", 1.5, "option timeout: 1.5 is not a number of seconds"),
        ("timeout", True, "option timeout: True is not a number of seconds"),
        ("program_memory", "much", "option program_memory: an amount of memory is a number and a unit, not 'much'"),
        ("program_memory", "0MiB", "option program_memory: an amount of memory must be at least 1 byte"),
        ("program_memory", 1 << 27, "option program_memory: 134217728 is not an amount of memory; expected text"),
        *[(name, 1, f"option {name}: 1 is not a boolean; expected true or false") for name in BOOLEANS],
    ],
)
def test_a_refused_value_is_a_usage_error(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        Options(**{name: value})  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("device", "kind", "number"),
    [("cpu", "cpu", 0), ("cuda", "cuda", 0), ("cuda:0", "cuda", 0), ("cuda:12", "cuda", 12)],
)
def test_a_device_is_named_by_its_kind_and_number(device: str, kind: str, number: int, tmp_path: Path) -> None:
    for options in (
        Options(device=device),
        Options.from_env({"OPSTAGE_DEVICE": device}),
        Options.from_toml(write(tmp_path, f'[options]\ndevice = "{device}"')),
    ):
        assert (options.device_kind, options.device_number, options.use_gpu) == (kind, number, kind == "cuda")


@pytest.mark.parametrize(
    "device",
    [
        "",
        "cuda:",
        "cuda:-1",
        "cuda:01",
        "cuda:1 ",
        "cuda:x",
        "cuda:1:2",
        "cuda:" + "9" * 5000,
        "cpu:0",
        "CUDA",
        "cuda:\u0661",
    ],
)
def test_what_names_no_device_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match=r"is not one of 'cpu', 'cuda'.*; one GPU of several is named by its number"):
        Options(device=device)


def test_replace_changes_a_copy() -> None:
    options = Options(seed=1)
    assert options.replace(seed=2, device="cuda") == Options(seed=2, device="cuda")
    assert options.seed == 1
    with pytest.raises(UsageError, match=r"Options.replace: unknown option 'sede' \(did you mean 'seed'\?\)"):
        options.replace(sede=2)


def test_from_dict_keeps_the_base_where_silent() -> None:
    assert Options.from_dict({}) == Options()
    assert Options.from_dict({"seed": 5}, base=Options(device="cuda")) == Options(seed=5, device="cuda")


def test_from_dict_names_its_source() -> None:
    with pytest.raises(UsageError, match=r"^run\.json: unknown option 'devise' \(did you mean 'device'\?\)"):
        Options.from_dict({"devise": "cpu"}, source="run.json")
    with pytest.raises(UsageError, match=r"^options: seed: 'x' is not a seed"):
        Options.from_dict({"seed": "x"})


def write(folder: Path, text: str) -> Path:
    path = folder / "train.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('seed = 7\ndtype = "float64"\nvalidate = false\n', "options"),
        ('seed = 7\ndtype = "float64"\nvalidate = false\n', None),
        ('name = "x"\n[options]\nseed = 7\ndtype = "float64"\nvalidate = false\n[other]\nseed = 8\n', "options"),
        ('[run.options]\nseed = 7\ndtype = "float64"\nvalidate = false\n', "run.options"),
    ],
)
def test_from_toml_reads_a_table_or_the_top_level(tmp_path: Path, text: str, table: str | None) -> None:
    assert Options.from_toml(write(tmp_path, text), table) == Options(seed=7, dtype="float64", validate=False)


@pytest.mark.parametrize(
    ("text", "table", "message"),
    [
        ("[options]\nsede = 1", "options", "[options]: unknown option 'sede' (did you mean 'seed'?)"),
        ('[options]\nseed = "1"', "options", "[options]: seed: '1' is not a seed"),
        ('[options]\nvalidate = "true"', "options", "[options]: validate: 'true' is not a boolean"),
        ("[option]\nseed = 1", "options", "no table [options] (did you mean 'option'?); it has [option]"),
        ("[run]\nseed = 1", "run.options", "no table [run.options]; it has none there"),
        ("seed = 1\nsede = 2", None, "unknown option 'sede'"),
        ("seed = ", "options", "not a TOML file: "),
        ("seed = " + "[" * 9999, "options", "not a TOML file: maximum recursion depth"),
        ("seed = " + "{a=" * 9999, "options", "not a TOML file: maximum recursion depth"),
        ("seed = " + "9" * 9999, "options", "not a TOML file: "),
        ("#" * 70_000, "options", "has more than 65,536 bytes; expected the options"),
    ],
)
def test_from_toml_errors_name_file_and_key(tmp_path: Path, text: str, table: str | None, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as error:
        Options.from_toml(path, table)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_from_toml_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml: cannot read the options: No such file"):
        Options.from_toml(tmp_path / "absent.toml")
    with pytest.raises(UsageError, match="cannot read the options"):
        Options.from_toml(tmp_path)


def test_from_env_reads_every_field() -> None:
    environment = {
        "HOME": "/",
        "OPSTAGE_BACKEND": "compiled",
        "OPSTAGE_DEVICE": "cuda",
        "OPSTAGE_DTYPE": "float64",
        "OPSTAGE_SEED": "18446744073709551615",
        "OPSTAGE_REQUIRES_GRAD_BY_DEFAULT": "false",
        "OPSTAGE_FAST_KERNELS": "0",
        "OPSTAGE_MATMUL_PRECISION": "bf16",
        "OPSTAGE_STRICT_CUDA": "False",
        "OPSTAGE_CUDA_GRAPHS": "never",
        "OPSTAGE_VALIDATE": "0",
        "OPSTAGE_DETECT_ANOMALY": "1",
        "OPSTAGE_DETERMINISTIC": "TRUE",
        "OPSTAGE_PROGRAM_MEMORY": "2GiB",
        "OPSTAGE_MESH": "data=4",
        "OPSTAGE_ZERO": "2",
        "OPSTAGE_BUCKET_SIZE": "2MiB",
        "OPSTAGE_ACCUMULATE": "4",
        "OPSTAGE_TIMEOUT": "90",
    }
    assert dataclasses.asdict(Options.from_env(environment)) == {
        "backend": "compiled",
        "device": "cuda",
        "dtype": "float64",
        "seed": 2**64 - 1,
        "requires_grad_by_default": False,
        "fast_kernels": False,
        "matmul_precision": "bf16",
        "cuda_graphs": "never",
        "strict_cuda": False,
        "validate": False,
        "detect_anomaly": True,
        "deterministic": True,
        "program_memory": "2GiB",
        "mesh": "data=4",
        "zero": 2,
        "bucket_size": "2MiB",
        "accumulate": 4,
        "timeout": 90,
    }


def test_from_env_reads_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSTAGE_SEED", "11")
    assert Options.from_env(base=Options(device="cuda")) == Options(seed=11, device="cuda")


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("OPSTAGE_DEVCE", "cpu", "unknown option (did you mean 'OPSTAGE_DEVICE'?)"),
        ("OPSTAGE_device", "cpu", "unknown option (did you mean 'OPSTAGE_DEVICE'?)"),
        ("OPSTAGE_DEVICE", "gpu", "'gpu' is not one of 'cpu', 'cuda' (did you mean 'cpu'?)"),
        ("OPSTAGE_SEED", "-1", "'-1' is not a seed"),
        ("OPSTAGE_SEED", "1.5", "'1.5' is not a seed"),
        ("OPSTAGE_SEED", "9" * 5000, "is not a seed"),
        ("OPSTAGE_VALIDATE", "yes", "'yes' is not a boolean; expected true, false, 1 or 0"),
        ("OPSTAGE_BACKEND", " ", "is not the name of an interpreter"),
    ],
)
def test_from_env_errors_name_the_variable(variable: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        Options.from_env({variable: text})
    assert str(error.value).startswith(f"environment variable {variable}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: Options(bucket="2MiB"),  # type: ignore[call-arg]
        lambda path: Options().replace(bucket="2MiB"),
        lambda path: Options.from_dict({"bucket": "2MiB"}),
        lambda path: Options.from_env({"OPSTAGE_BUCKET": "2MiB"}),
        lambda path: Options.from_toml(write(path, '[options]\nbucket = "2MiB"')),
        lambda path: configure("mlp", flags=[Layer.of({"options.bucket": "2MiB"}, "here")]).settings.options,
        lambda path: Options().replace(bucket_size=read_option("bucket", "2MiB")),
    ],
    ids=["constructor", "replace", "dict", "environment", "file", "setting", "text"],
)
def test_an_earlier_name_of_an_option_warns(tmp_path: Path, make: Callable[[Path], Options]) -> None:
    with pytest.warns(DeprecationWarning, match="bucket is now (options.)?bucket_size"):
        options = make(tmp_path)
    assert options == Options(bucket_size="2MiB")
    with pytest.warns(DeprecationWarning, match="bucket is now bucket_size") as record:
        assert options.bucket == "2MiB"
    assert record[0].filename == __file__
