"""The GitHub action, the Buildkite step and the block of a perf-eval recipe run against a server that is up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT

CI = ROOT / "ci"
RUN_STUB = """#!/bin/sh
printf '%s\\n' "$@" > {log}
while [ "$1" != "--report-dir" ]; do shift; done
mkdir -p "$2" && echo "## Coldproof" > "$2/summary.md"
exit {code}
"""


def executable(path: Path, text: str) -> Path:
    """Write an executable script and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def action_ran(tmp_path: Path, *, code: int = 0, **inputs: str) -> tuple[list[int], dict[str, str], list[str]]:
    """Return the exit codes of the action's steps, its outputs and the arguments of Coldproof, with stubs for all
    programs.
    """
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    values = {
        name: inputs.get(name.replace("-", "_"), str(one.get("default"))) for name, one in action["inputs"].items()
    }
    log, output, summary = (tmp_path / name for name in ("log", "output", "summary"))
    stub = executable(tmp_path / "stub", RUN_STUB.format(log=log, code=code))
    pip = executable(tmp_path / "pip", f"#!/bin/sh\nfor word; do echo $word > {tmp_path}/installed; done\n")
    venv = f'#!/bin/sh\nmkdir -p "$3/bin" && cp {stub} "$3/bin/coldproof" && cp {pip} "$3/bin/pip"\n'
    executable(tmp_path / "path" / "python3", venv)
    given = {
        "PATH": f"{tmp_path}/path:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path / "temporary"),
        "GITHUB_ACTION_PATH": "/the/action",
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    codes = []
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]  # a value would be read as a command
        filled = {
            name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: values[found[1]], text)
            for name, text in step.get("env", {}).items()
        }
        command = [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        ended = subprocess.run(command, env={**given, **filled}, cwd=tmp_path, check=False)
        codes.append(ended.returncode)
    written = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert summary.exists() == (codes[1] != 4)
    return codes, written, log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("args", ["-k 'salts or chat --budget 5m", '--budget "5m'])
def test_an_unmatched_quote_ends_the_action_before_the_run(tmp_path: Path, args: str) -> None:
    """Otherwise the words after it would be dropped."""
    codes, written, words = action_ran(tmp_path, engine_url="http://h:1", args=args)
    assert codes == [0, 4, 0]
    assert written == {"exit-code": "4"}
    assert words == []


def test_an_earlier_summary_is_not_this_runs(tmp_path: Path) -> None:
    """A refused run left no summary."""
    (tmp_path / "coldproof-report").mkdir()
    (tmp_path / "coldproof-report" / "summary.md").write_text("CONFORMANT")
    codes, _, _ = action_ran(tmp_path, code=4, engine_url="http://h:1")
    assert codes == [0, 4, 0]
    assert not (tmp_path / "summary").exists()


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_action_has_the_exit_code_of_the_run(tmp_path: Path, code: int) -> None:
    """The code is its own and an output, and the summary is written whatever the code."""
    codes, written, _ = action_ran(tmp_path, code=code, engine_url="http://localhost:8000")
    assert codes == [0, code, 0]
    assert written == {"exit-code": str(code), "results": "coldproof-report.json"}
    assert (tmp_path / "installed").read_text() == "/the/action\n"


def test_the_action_installs_a_wheel_and_passes_options_on(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Options with spaces are in quotes, and every option is one of a run."""
    inputs = {"engine_url": "http://h:1", "wheel": "dist/coldproof.whl", "args": "--budget 5m -k 'salts or chat'"}
    _, _, words = action_ran(tmp_path, **inputs)
    assert (tmp_path / "installed").read_text() == "dist/coldproof.whl\n"
    assert words[:1] == ["run"]
    assert words[-4:] == ["--budget", "5m", "-k", "salts or chat"]
    assert words[words.index("--engine-url") + 1] == "http://h:1"
    assert [word for word in words if word.startswith("--") and known_option(request.config, word)]
    assert all(known_option(request.config, word) for word in words if word.startswith("--"))


def known_option(config: pytest.Config, word: str) -> bool:
    """Return whether a run has this option."""
    try:
        config.getoption(word.partition("=")[0])
    except ValueError:
        return False
    return True


def test_the_jobs_for_a_server_keep_the_report_and_never_try_again() -> None:
    """The workflow gives the action inputs that it has, and the Buildkite step ends with the exit code of the run."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (job,) = yaml.safe_load((CI / "github-server.yml").read_text())["jobs"].values()
    (ours,) = [step for step in job["steps"] if step.get("uses", "").startswith("OWNER/coldproof@")]
    required = {name for name, one in action["inputs"].items() if one.get("required")}
    assert required <= ours["with"].keys() <= action["inputs"].keys()
    assert job["steps"][-1]["if"] == "always()"
    (step,) = yaml.safe_load((CI / "buildkite-server.yml").read_text())["steps"]
    assert step["commands"][-1] == "exit $$CODE"
    assert [rule["exit_status"] for rule in step["retry"]["automatic"]] == [-1]
    assert not re.search(r"(?<!\$)\$(?!\$)", " ".join(step["commands"]))


def block_ran(tmp_path: Path, recipe: str | Path, *, code: int = 0) -> tuple[int, str, list[str]]:
    """Return the exit code, the errors and the arguments of the script for a perf-eval recipe, with a stub for
    Coldproof.
    """
    log = tmp_path / "log"
    log.touch()
    executable(tmp_path / "path" / "coldproof", RUN_STUB.format(log=log, code=code))
    if isinstance(recipe, str):
        (tmp_path / "recipe.yaml").write_text(recipe)
        recipe = tmp_path / "recipe.yaml"
    command = [sys.executable, str(CI / "perf_eval_block.py"), str(recipe), "http://h:1", str(tmp_path / "results")]
    environment = {**os.environ, "PATH": f"{tmp_path}/path:{os.environ['PATH']}"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr, log.read_text().splitlines()


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_block_of_a_recipe_is_a_run(request: pytest.FixtureRequest, tmp_path: Path, code: int) -> None:
    """The run uses the server of the recipe, has its options and exit code, and writes into the folder of its
    results.
    """
    ended, _, words = block_ran(tmp_path, CI / "perf-eval-recipe.yaml", code=code)
    results = tmp_path / "results"
    assert ended == code
    assert words[:3] == ["run", "--engine-url", "http://h:1"]
    assert words[3:7] == ["--json", f"{results}/coldproof.json", "--report-dir", f"{results}/coldproof"]
    assert words[7:] == ["--profile=ci", "--budget=5m", "--allow-not-exercised=5"]
    assert all(known_option(request.config, word) for word in words if word.startswith("--"))


def test_a_block_may_repeat_and_leave_out_options(tmp_path: Path) -> None:
    """The blocks of perf-eval allow this as well."""
    recipe = "coldproof: {args: {adapter: [/a, /b], allow_not_exercised: false, seed: null, --guided: true}}"
    _, _, words = block_ran(tmp_path, recipe)
    assert words[7:] == ["--adapter=/a", "--adapter=/b", "--guided"]


@pytest.mark.parametrize(
    ("recipe", "ended", "says"),
    [
        ("vllm: {model: m}", 0, ""),
        ("coldproof: {budget: 5m}", 4, "unsupported fields ['budget']; options of a run go under `args`"),
        ("coldproof: {args: {engine_url: x}}", 4, "cannot set --engine-url"),
        ("coldproof: [a]", 4, "has a map `args`"),
    ],
)
def test_a_recipe_without_a_good_block_is_no_run(tmp_path: Path, recipe: str, ended: int, says: str) -> None:
    """Without a block there is nothing to do, and a wrong one is refused in one line."""
    code, errors, words = block_ran(tmp_path, recipe)
    assert (code, words) == (ended, [])
    assert says in errors
    assert errors.count("\n") == (1 if says else 0)
