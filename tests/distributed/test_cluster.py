"""The predicted step of a cluster: small cases by hand, its bytes those that are sent, its input held to its form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.sent import sent_by_processes
from opstage import Options, Spec, UsageError
from opstage.cli.commands import cli
from opstage.interpreters.shape_check.traffic import Machines, cost_of_call, messages_of, predicted
from opstage.ops.collective import BY_NAME
from opstage.ops.mesh import Mesh
from opstage.training.validate import check_step

MACHINES = Machines(ranks_per_host=4, alpha=1e-3, beta=1e6, flops=1e9, alpha_within=1e-4, beta_within=1e7)


def loss(ops: Any, params: Any, x: Any) -> Any:
    """A linear map, squared."""
    h = ops.linear(params["w"], None, x)
    return ops.reduce_mean(ops.mul(h, h))


def step_of(mesh: str, rows: str | int, width: int = 5, **options: Any) -> Any:
    params = {"w": (width, width)}
    return check_step(loss, params, Spec(f"{rows} {width}"), options=Options(mesh=mesh, **options))


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("width, zero", [(5, 0), (128, 0), (128, 2), (128, 3)])
def test_bytes_are_those_that_a_process_sends(count: int, width: int, zero: int) -> None:
    """Summed over the collectives of a step, for sums that are small and that are large, and for ZeRO's."""
    report = step_of(f"data={count}", 24, width, zero=zero)
    sent = 0.0
    for sending in report.traffic.sendings:
        scalar = 4 if sending.name == "all_reduce" else 0  # the loss, beside gradients
        calls = int(sending.calls) - (1 if scalar else 0)
        sent += cost_of_call(BY_NAME[sending.name], scalar, count)[1] if scalar else 0
        if calls:
            sent += calls * cost_of_call(BY_NAME[sending.name], (int(sending.nbytes) - scalar) // calls, count)[1]
    found = sent_by_processes(report.program, Mesh.parse(f"data={count}"), count)
    assert sum(found) == pytest.approx(sent * count, rel=1e-3)  # parts of a sum are whole numbers of elements


def test_a_step_by_hand() -> None:
    """On 8 ranks of two hosts: a gradient of 64 KiB, in two rounds to 7 others, of which 3 are near, and the loss."""
    report = step_of("data=8", 8, 128)
    found = predicted(report, MACHINES, Mesh.parse("data=8"), {})
    assert found.computing == pytest.approx(report.cost.flops / 1e9)
    calls = 2 * 7 + 7
    assert found.latency == pytest.approx(calls * (4 * 1e-3 + 3 * 1e-4) / 7)
    sent = 2 * 65536 * 7 / 8 + 4 * 7
    assert found.transfer == pytest.approx(sent * (4 / 7 * 4 / 1e6 + 3 / 7 / 1e7))
    near = predicted(report, Machines(8, 1.0, 1.0, 1e9, 1e-4, 1e7), Mesh.parse("data=8"), {})
    assert near.latency == pytest.approx(calls * 1e-4) and near.transfer == pytest.approx(sent / 1e7)


def test_formulas_hold_for_every_number_of_ranks() -> None:
    report = step_of("data=N", "B")
    assert str(messages_of(report)) == "4*N - 4"
    for count in (2, 4, 8):
        numbers = step_of(f"data={count}", 8)
        sizes = {"B": 8, "N": count}
        mesh = Mesh.parse(f"data={count}")
        assert predicted(report, MACHINES, mesh, sizes) == predicted(numbers, MACHINES, mesh, {})


@pytest.mark.parametrize(
    "text, said",
    [
        ("alpha=1e-6", "ranks_per_host and beta and flops missing"),
        ("ranks_per_host=8,alpha=0,beta=1,flops=1", "alpha is '0'; expected a number above 0"),
        ("ranks_per_host=1.5,alpha=1,beta=1,flops=1", "ranks_per_host is '1.5'; expected a whole number"),
        ("ranks_per_host=8,alpha=fast,beta=1,flops=1", "alpha is 'fast'; expected a number above 0"),
        ("ranks_per_host=8,alfa=1,beta=1,flops=1", "there is no 'alfa'"),
        ("ranks_per_host=8,alpha=nan,beta=1,flops=1", "alpha is 'nan'"),
        ("no-such.toml", "no-such.toml"),
    ],
)
def test_what_describes_no_cluster(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Machines.read(text)
    assert said in str(caught.value)


def test_a_file_describes_one(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    values = {"ranks_per_host": 4, "alpha": 1e-3, "beta": 1e6, "flops": 1e9, "alpha_within": 1e-4, "beta_within": 1e7}
    file.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
    assert Machines.read(str(file)) == MACHINES
    file.write_text("ranks_per_host = ")
    with pytest.raises(UsageError, match="not a TOML file"):
        Machines.read(str(file))


PLAIN = "ranks_per_host=8,alpha=5e-6,beta=12.5e9,flops=1e12"


def run(*words: str) -> Any:
    return CliRunner().invoke(cli, ["check", "mlp", *words], standalone_mode=False)


def test_the_command_predicts_one_to_1024_ranks() -> None:
    done = run("--mesh", "data=N", "--at", "B=96", "--cluster", PLAIN)
    assert done.exception is None, done.output
    assert "predicted by the alpha-beta model, nothing measured" in done.output
    rows = [line.split() for line in done.output.splitlines() if line.strip()[:1].isdigit()]
    counts = [int(row[0].replace(",", "")) for row in rows]
    assert counts == [1 << power for power in range(11)]
    for count, row in zip(counts, rows):
        assert (row[1:6] == ["-"] * 5) == bool(96 % count)  # they cannot share 96 rows
    shares = [float(row[-2]) for row in rows]
    assert shares[0] == 100 and shares == sorted(shares, reverse=True)  # with as many rows a rank, efficiency falls


def test_a_mesh_of_numbers_is_one_prediction() -> None:
    done = run("--mesh", "data=2", "--at", "B=96", "--cluster", PLAIN, "--format", "json")
    (one,) = json.loads(done.output)["targets"][0]["sections"]["cluster"]["data"]["predictions"]
    assert one["ranks"] == 2 and one["strong"]["seconds"] > one["strong"]["computing"] > 0


@pytest.mark.parametrize(
    "words, said",
    [
        (("--mesh", "data=N", "--cluster", PLAIN), "say how large B is: --at B="),
        (("--mesh", "data=N", "--at", "C=3", "--cluster", PLAIN), "unknown dim 'C'"),
        (("--cluster", PLAIN), "say of which mesh with --mesh"),
        (("--mesh", "data=N", "--at", "B=4", "--cluster", "alpha=1"), "missing; expected ranks_per_host"),
    ],
)
def test_what_cannot_be_predicted(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert isinstance(done.exception, UsageError) and said in str(done.exception)
