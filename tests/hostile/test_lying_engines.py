"""Engines whose answers show nothing, or whose wrong answers look like noise: no requirement conforms on them.

Each reports the counts of a correct cache. The wrong answers of the last ones have a margin of 0.0005 nats, as if
rounding had chosen between two tokens.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_server import FakeServer, ServerBehaviour, serving
from support.nightly import with_samples
from support.paths import COUNTED
from support.suite_runs import run_coldproof

from coldproof.harness.schema.results import RequirementResult, Results, read_results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.selftest.scripted_engine import BlindModel

CLOSE = 0.0005  # nats
OF_HITS = ("REUSE-1",)
# Rows of prompt scores that hold only the prompt's own token, and scores that no answer has.
WRONG = {
    "every hit": ServerBehaviour(corrupt="tokens", margin=CLOSE),
    "every hit, with scores that vary": ServerBehaviour(corrupt="tokens", margin=CLOSE, jitter=CLOSE),
    "every hit, with a clear margin": ServerBehaviour(corrupt="tokens"),
    "one hit in fifty": ServerBehaviour(corrupt="tokens", margin=CLOSE, every=50),
}


def results_of(folder: Path, command: list[str], wanted: tuple[str, ...], **environment: str) -> Results:
    """Run a few requirements for a few examples and return the results."""
    words = ["--requirements", ",".join(wanted), *COUNTED, "--diagnose", "none"]
    ended = run_coldproof([*command, *words, "--report-dir", str(folder / "report")], environment)
    assert (folder / "report" / "results.json").is_file(), ended.stdout
    results = read_results(folder / "report" / "results.json")
    assert ended.returncode == results.exit_code
    return results


def on_server(folder: Path, server: FakeServer, wanted: tuple[str, ...]) -> Results:
    """Return the results of a run on an attached server."""
    return results_of(folder, ["--engine-url", server.url], wanted)


def in_process(folder: Path, lie: str, wanted: tuple[str, ...]) -> Results:
    """Return the results of a run on an engine in the same process."""
    command = ["-p", "support.lying_engine", "--engine", "lying"]
    return results_of(folder, [*command, "--cells", "lying", "--findings", "off"], wanted, COLDPROOF_LIE=lie)


def conforming(results: Results) -> list[str]:
    """Return the ids of the requirements that conform."""
    return [one.id for one in results.requirements if one.verdict is Verdict.CONFORMS]


def assert_nothing_shown(results: Results) -> None:
    """Check that nothing conforms, and that the reason is that no answer could have shown a wrong block."""
    assert conforming(results) == []
    assert results.exit_code != 0
    reasons = [one.reason for one in results.requirements if one.verdict is Verdict.INCONCLUSIVE]
    assert reasons
    assert all("could not have shown a wrong block" in reason for reason in reasons)


def only(results: Results) -> RequirementResult:
    """Return the result of the only requirement."""
    (found,) = results.requirements
    return found


@pytest.mark.parametrize("model", with_samples(BlindModel, BlindModel.IGNORES_PROMPT), ids=lambda model: model.name)
def test_a_server_whose_answers_do_not_depend_on_its_prompts_conforms_to_nothing(
    model: BlindModel, tmp_path: Path
) -> None:
    """If answers do not depend on the prompt, wrong blocks cannot show: seven of eight requirements used to conform."""
    with serving(ServerBehaviour(blind=model)) as server:
        assert_nothing_shown(on_server(tmp_path, server, OF_HITS))


@pytest.mark.parametrize("model", with_samples(BlindModel, BlindModel.LAST_BLOCK_ONLY), ids=lambda model: model.name)
def test_an_engine_in_the_same_process_with_such_answers_conforms_to_nothing(model: BlindModel, tmp_path: Path) -> None:
    """The same holds for an engine with a cold engine of its own in this process."""
    assert_nothing_shown(in_process(tmp_path, model.name, OF_HITS))


@pytest.mark.parametrize("how", with_samples(WRONG, "every hit, with scores that vary"))
def test_a_server_that_answers_wrongly_on_hits_does_not_conform(how: str, tmp_path: Path) -> None:
    """Wrong answers on hits must not pass as noise: a run with 36 wrong answers of 36 used to be CONFORMANT."""
    with serving(WRONG[how]) as server:
        results = on_server(tmp_path, server, OF_HITS)
    assert server.corrupted > 0
    assert only(results).verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE), only(results).reason
    assert results.exit_code != 0


@pytest.mark.parametrize("lie", with_samples(["EVERY_HIT", "EVERY_HIT_VARYING", "ONE_IN_FIFTY"], "ONE_IN_FIFTY"))
def test_an_engine_in_the_same_process_that_answers_wrongly_on_hits_does_not_conform(lie: str, tmp_path: Path) -> None:
    """The same holds in one process, where the cold engine reports the same small margins."""
    results = in_process(tmp_path, lie, OF_HITS)
    assert only(results).verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE), only(results).reason
    assert results.exit_code != 0


def test_an_honest_engine_of_the_same_kind_conforms(tmp_path: Path) -> None:
    """An engine that is correct and has the same margins conforms, so the other tests do not fail for another
    reason.
    """
    results = in_process(tmp_path, "NONE", OF_HITS)
    assert (only(results).verdict, results.exit_code) == (Verdict.CONFORMS, 0), only(results).reason
    with serving(ServerBehaviour(margin=CLOSE)) as server:
        results = on_server(tmp_path / "server", server, OF_HITS)
    assert (only(results).verdict, results.exit_code) == (Verdict.CONFORMS, 0), only(results).reason
