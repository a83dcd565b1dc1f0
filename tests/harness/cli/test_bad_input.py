"""Commands with a wrong value end with one line and exit code 4, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldproof.harness.cli.main import main

USAGE = 4
# `FOLDER`: an empty folder.
ROWS: list[tuple[list[str], str]] = [
    (["power", "--jobs", "0"], "argument --jobs: '0' is no whole number of at least 1"),
    (["power", "--jobs", "-1"], "argument --jobs"),
    (["power", "--clean-runs", "-1"], "argument --clean-runs"),
    (["power", "--clean-runs", "1.5"], "argument --clean-runs: '1.5' is no whole number of at least 0"),
    (["power", "--budget", "nan"], "invalid duration"),
    (["power", "--budget", "99999999999999h"], "invalid duration"),
    (["power", "--faults", ""], "unknown fault ''"),
    (["power", "--model", "FOLDER"], "no config.json there"),
    (["power", "--model", "./FOLDER/missing"], "no config.json there"),
    (["noise", "clean", "--requests", "0"], "argument --requests: '0' is no whole number of at least 1"),
    (["noise", "clean", "--model", "FOLDER"], "no config.json there"),
    (["fleet", "matrix.toml", "--retries", "-1"], "argument --retries"),
    (["fleet", "FOLDER"], "cannot use the matrix"),
    (["model", ""], "no model is named ''"),
    (["cells", "--engine", ""], "unknown engine ''"),
    (["findings", "--replay", ""], "unknown finding or engine ''"),
]


def exit_code(words: list[str]) -> int:
    """Return the exit code of a command, even if argparse ends it."""
    try:
        return main(words)
    except SystemExit as ended:
        return int(str(ended.code))


@pytest.mark.parametrize(("words", "says"), ROWS, ids=[" ".join(words) for words, _ in ROWS])
def test_a_wrong_value_is_one_line(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line names the command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    code = exit_code(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"coldproof {words[0]}: ")
    assert says in line
    assert code == USAGE
