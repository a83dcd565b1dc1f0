"""A second server gives the cold answers for an attached one, at its own address."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_server import ServerBehaviour, serving
from support.paths import COUNTED
from support.suite_runs import run_coldproof

from coldproof.harness.options import Options, UsageError
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.selection.command_line import default_oracle
from coldproof.harness.selection.validation import check_options


def run(folder: Path, *words: str) -> Results:
    """Return the results of a short run of one requirement on attached servers."""
    words = (*words, "--requirements", "REUSE-1", *COUNTED, "--diagnose", "none", "--allow-not-exercised")
    done = run_coldproof([*words, "--report-dir", str(folder / "report")])
    assert (folder / "report" / "results.json").is_file(), done.stdout
    return read_results(folder / "report" / "results.json")


@pytest.mark.parametrize(
    ("corrupt", "verdict"), [pytest.param("", "CONFORMS", marks=pytest.mark.nightly), ("tokens", "VIOLATED")]
)
def test_a_server_without_salts_is_judged_by_a_second_one(tmp_path: Path, corrupt: str, verdict: str) -> None:
    """The tested server may answer wrongly on hits; the cold server has no cache.

    The stand-ins' scores of prompts do not agree with those of answers.
    """
    plain = ServerBehaviour(salts=False, refuses=("prompt_logprobs",))
    with serving(replace(plain, corrupt=corrupt)) as tested, serving(replace(plain, caches=False)) as cold:
        found = run(tmp_path, "--engine-url", tested.url, "--cold-url", cold.url)
        prompts = [len(seen.body["prompt"]) for seen in cold.seen if "prompt" in seen.body]
    (requirement,) = found.requirements
    assert requirement.verdict == verdict, requirement.reason
    assert found.calibration is not None
    assert found.calibration.oracle == "cold-engine"
    assert len(prompts) > 20


def test_without_a_second_one_there_are_no_cold_answers(tmp_path: Path) -> None:
    """An ignored salt does not bypass the cache, so there is no verdict on the server."""
    with serving(ServerBehaviour(salts=False)) as tested:
        found = run(tmp_path, "--engine-url", tested.url)
    assert found.requirements[0].verdict in ("ERROR", "NOT EXERCISED")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine_url": "http://h:1", "engine": "endpoint", "oracle": "cold-engine"}, "or give --cold-url"),
        ({"cold_url": "http://h:2", "engine": "vllm", "oracle": "cold-engine"}, "--cold-url requires --engine-url"),
    ],
)
def test_a_cold_server_needs_one_to_test(changes: dict[str, str], says: str) -> None:
    """Each error is one line."""
    with pytest.raises(UsageError, match=re.escape(says)):
        check_options(Options(report_dir=Path("out"), **changes))  # type: ignore[arg-type]


def test_the_cold_server_is_the_oracle_unless_another_is_named() -> None:
    """This holds if an attached server has a cold server."""
    assert default_oracle("endpoint", "http://h:1", False, cold_url="http://h:2") == "cold-engine"
    assert default_oracle("endpoint", "http://h:1", False) == "same-engine"
