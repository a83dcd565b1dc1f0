"""Every subcommand of `coldproof` has help, refuses bad input in one line, and passes on the arguments of pytest."""

from __future__ import annotations

import os

import pytest

from coldproof.harness.cli.main import PASSED_ON, SUBCOMMANDS, main, subcommand
from coldproof.harness.option_table import OPTIONS
from coldproof.harness.session.pytest_command import pytest_command


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments that pytest would get after those that `run` always adds, which the fixture checks."""
    words: list[str] = []

    def replace_process(_: str, command: list[str]) -> None:
        own = pytest_command([])
        assert command[: len(own)] == own
        words.extend(command[len(own) :])

    monkeypatch.setattr(os, "execv", replace_process)
    return words


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help begins with the name and says what the command does."""
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"usage: coldproof {name} ")
    assert subcommand(name).purpose[1:] in said


@pytest.mark.parametrize("name", sorted(PASSED_ON))
def test_run_and_replay_list_the_options_of_a_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help has their help texts, and says where the other options come from."""
    declared = {option: settings["help"] for option, settings in OPTIONS.items()}
    declared.pop("--joined")  # for the processes of a run's layers
    declared.pop("--prove")  # for the run of `coldproof prove`
    with pytest.raises(SystemExit):
        main([name, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert all(f" {option} " in said and " ".join(text.split()) in said for option, text in declared.items())
    assert "All other options are pytest's" in said


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS.keys() - PASSED_ON))
def test_an_unknown_option_is_one_line_and_exit_code_4(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line begins with the name of the command."""
    with pytest.raises(SystemExit) as stop:
        main([name, "--no-such-option"])
    assert stop.value.code == 4
    said = capsys.readouterr().err
    assert said.startswith("coldproof")
    assert said.count("\n") == 1


def test_all_arguments_of_run_are_passed_on(started: list[str]) -> None:
    """The order is kept, as are a value of --engine-args that begins with a dash and a `--`."""
    main(["run", "-k", "x", "--engine-args", "--max-num-seqs 2", "--cells", "list", "--", "-h"])
    expected = ["-k", "x", "--engine-args=--max-num-seqs 2", "--cells", "list", "--", "-h"]
    assert started == expected


@pytest.mark.parametrize("words", [[], ["--engine-args"], ["x"]])
def test_run_adds_nothing_of_its_own(words: list[str], started: list[str]) -> None:
    """This includes a last option without its value: pytest reports that."""
    main(["run", *words])
    assert started == words


def test_replay_is_run_with_the_case(started: list[str]) -> None:
    """Any options may follow the case."""
    main(["replay", "case.json", "--engine", "llamacpp"])
    assert started == ["--replay=case.json", "--engine", "llamacpp"]


def test_cells_are_those_of_the_engine(capfd: pytest.CaptureFixture[str]) -> None:
    """Without an engine all cells are listed, and an engine without cells is refused."""
    assert main(["cells"]) == 0
    everything = capfd.readouterr().out.splitlines()
    assert main(["cells", "--engine", "llamacpp"]) == 0
    some = capfd.readouterr().out.splitlines()
    assert {line.split()[0] for line in some} < {line.split()[0] for line in everything}
    assert all(line.startswith("llamacpp") for line in some)
    assert main(["cells", "--engine", "nothing"]) == 4
    assert capfd.readouterr().err.startswith("coldproof cells: unknown engine 'nothing': choose one of ")


def test_faults_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    """They are listed by name."""
    assert main(["faults"]) == 0
    assert "hashes-lack-the-salt-and-the-adapter" in capfd.readouterr().out
