"""A matrix file is parsed strictly, and alone defines the runs of a fleet."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.fleets import matrix, units

from coldproof.harness.cli.main import main
from coldproof.harness.fleet.matrix import MatrixRun, read_matrix, units_of
from coldproof.harness.options import UsageError

MACHINE = '[[machine]]\nname = "cpu"\n'
RUN = '[[run]]\nengine = "llamacpp"\nmachines = ["cpu"]\n'
VLLM = RUN.replace("llamacpp", "vllm") + 'worker = "fingerprint"\n'


def written(folder: Path, text: str) -> Path:
    """Return a matrix file with this text."""
    path = folder / "matrix.toml"
    path.write_text(text)
    return path


def test_a_matrix_is_every_engine_cell_seed_and_machine_once(tmp_path: Path) -> None:
    """The order is that of the file. Shards multiply the units, and no two units have the same id."""
    text = (
        MACHINE
        + '[[machine]]\nname = "h200"\nnum_gpus = 1\naccelerator_type = "H200"\n'
        + RUN
        + 'cells = ["llamacpp", "llamacpp-unified"]\nseeds = [1, 7]\n'
        + '[[run]]\nname = "whole"\nengine = "vllm"\nmachines = ["h200", "cpu"]\nshards = 2\n'
    )
    found = units_of(read_matrix(written(tmp_path, text)), tmp_path)
    assert [unit.id for unit in found] == [
        "llamacpp-cpu-llamacpp-seed1",
        "llamacpp-cpu-llamacpp-seed7",
        "llamacpp-cpu-llamacpp-unified-seed1",
        "llamacpp-cpu-llamacpp-unified-seed7",
        "whole-h200-profile-seed1-1of2",
        "whole-h200-profile-seed1-2of2",
        "whole-cpu-profile-seed1-1of2",
        "whole-cpu-profile-seed1-2of2",
    ]
    assert found[0].column("llamacpp") == "cpu / llamacpp / llamacpp"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "missing required field `machine`"),
        ("run = []\n" + MACHINE, "there is no [[run]]"),
        (MACHINE + RUN + 'cell = ["llamacpp"]\n', "unknown field `cell`"),
        (MACHINE + RUN.replace("llamacpp", "lamacpp"), "unknown engine 'lamacpp'"),
        (MACHINE + RUN + 'cells = ["llamacpp-many"]\n', "unknown cell 'llamacpp-many'"),
        (MACHINE + RUN + 'cells = ["default"]\n', "cell 'default' belongs to engine vllm, not to llamacpp"),
        (MACHINE + RUN + 'cells = ["llamacpp", "llamacpp"]\n', "two cells have the name 'llamacpp'"),
        (MACHINE + RUN.replace('["cpu"]', '["gpu"]'), "there is no [[machine]] 'gpu'; existing machines: cpu"),
        (MACHINE + MACHINE + RUN, "two machines have the name 'cpu'"),
        (MACHINE + RUN + RUN, "two runs have the name 'llamacpp'"),
        (MACHINE + RUN + "seeds = []\n", "seeds = []: give at least one, and each only once"),
        (MACHINE + RUN + "seeds = [3, 3]\n", "seeds = [3, 3]: give at least one, and each only once"),
        (MACHINE + RUN + 'profile = "smok"\n', "unknown profile 'smok'"),
        (MACHINE + RUN + 'budget = "soon"\n', "--budget 'soon': invalid duration"),
        (MACHINE + RUN + 'requirements = ["LORA-99"]\n', "no requirement 'LORA-99'"),
        (MACHINE + RUN + 'options = ["--report-dir", "x"]\n', "options: --report-dir cannot be used in a fleet"),
        (MACHINE + RUN + 'options = ["--fault=x"]\n', "options: --fault cannot be used in a fleet"),
        (MACHINE + RUN + 'options = ["--noise", "batch:0.05"]\n', "--engine llamacpp does not support --noise"),
        (MACHINE + VLLM + 'options = ["--noise=much"]\n', "--noise 'much' is not a noise setting"),
        (MACHINE + VLLM + 'oracle = "closed-form"\noptions = ["--noise", "batch:0.05"]\n', "does not model noise"),
        (MACHINE + RUN + 'known_issues = "none.toml"\n', "cannot use --known-issues"),
        (
            MACHINE + RUN + 'worker = "fingerprint"\n',
            "does not support --worker fingerprint; engines that do: vllm, vllm-inproc",
        ),
        (MACHINE + RUN + 'profile = "qualify"\ncells = ["llamacpp"]\n', "leave out cells and requirements"),
        (MACHINE + RUN + 'engine_url = "http://localhost:1"\n', "starts its own server; remove --engine-url"),
        (MACHINE.replace("cpu", "a b") + RUN, "matching regex"),
        (MACHINE + "num_cpus = -1\n" + RUN, ">= 0"),
        ("[[machine]\n", "cannot use the matrix"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_matrix_is_one_line_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    """Unknown words, duplicate names, and runs that a single machine would refuse give exit code 4 and no folder."""
    assert main(["fleet", str(written(tmp_path, text)), "--out", str(tmp_path / "out")]) == 4
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_paths_of_known_issues_are_relative_to_the_matrix(tmp_path: Path) -> None:
    """The folder in which the fleet is started does not matter."""
    (tmp_path / "known.toml").write_text("")
    path = written(tmp_path, MACHINE + RUN + 'cells = ["llamacpp"]\nknown_issues = "known.toml"\n')
    assert units_of(read_matrix(path), tmp_path)[0].waivers == tmp_path / "known.toml"


def test_two_runs_that_would_write_into_one_folder_are_refused() -> None:
    """Names with dashes can make the same id for different units."""
    two = [
        MatrixRun(engine="llamacpp", machines=("b-c",), name="a"),
        MatrixRun(engine="llamacpp", machines=("c",), name="a-b"),
    ]
    with pytest.raises(UsageError, match="two units have the name"):
        units_of(matrix(*two, machines=("c", "b-c")), Path())


def test_a_units_digest_is_of_all_that_its_verdicts_depend_on(tmp_path: Path) -> None:
    """It covers the definition of the unit, the sources, and the known issues."""
    waivers = tmp_path / "known.toml"
    waivers.write_text("")
    unit = msgspec.structs.replace(units()[0], waivers=waivers)
    before = unit.digest("a")
    assert before == unit.digest("a")
    changed = [
        unit.digest("b"),
        msgspec.structs.replace(unit, seed=9).digest("a"),
        msgspec.structs.replace(unit, run=msgspec.structs.replace(unit.run, budget="9s")).digest("a"),
        msgspec.structs.replace(unit, machine=msgspec.structs.replace(unit.machine, num_cpus=2)).digest("a"),
    ]
    waivers.write_text("# another\n")
    assert len({before, *changed, unit.digest("a")}) == 6


def test_a_unit_is_run_as_the_matrix_says() -> None:
    """Every key becomes the option that it stands for."""
    run = MatrixRun(
        engine="llamacpp",
        machines=("cpu",),
        cells=("llamacpp",),
        seeds=(7,),
        shards=2,
        requirements=("LORA-1", "SALT"),
        profile="ci",
        budget="2m",
        options=("--diagnose", "none"),
    )
    assert " ".join(units(matrix(run))[1].words("out")) == (
        "--engine llamacpp --cells llamacpp --requirements LORA-1,SALT --profile ci --budget 2m --worker model "
        "--shard 2/2 --report-dir out --hypothesis-seed=7 --diagnose none"
    )


def test_a_matrix_can_be_listed_without_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is a line for each run, and nothing is started or written."""
    out = tmp_path / "out"
    assert main(["fleet", str(written(tmp_path, MACHINE + RUN + "seeds = [1, 2]\n")), "--out", str(out), "--list"]) == 0
    assert capsys.readouterr().out == "llamacpp-cpu-profile-seed1\nllamacpp-cpu-profile-seed2\n"
    assert not out.exists()
