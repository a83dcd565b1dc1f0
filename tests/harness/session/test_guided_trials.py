"""A guided trial keeps workloads that reached rare states, and the next run of its requirement starts from them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.across import crossed_engines, honest, tampering
from support.histories import ask, burst

from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.session.reach_corpus import ReachCorpus
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.steps import Workload

ONCE = Workload((burst(ask(("stem", 40))),))
TWICE = Workload((burst(ask(("stem", 40))), burst(ask(("stem", 40)))))


def trial(name: str = "REUSE-1") -> Trial:
    """Return a trial of a requirement."""
    one = Trial(Requirement(name, "as cold", (), (Requests.REQUESTS,)), "left", "a statement", "a_test")
    one.replaying = True  # no time is divided here
    return one


def corpus_of(sut: SystemUnderTest) -> ReachCorpus:
    """Return the corpus from which workloads are drawn."""
    assert isinstance(sut.limits.guidance, ReachCorpus)
    return sut.limits.guidance


def test_the_next_run_of_a_requirement_starts_from_what_was_kept(tmp_path: Path) -> None:
    """Another requirement starts from an empty corpus."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    cache = tmp_path / "cache"
    with crossed_engines(tmp_path / "first", tampering(honest), tampering(honest), guided=True, cache_dir=cache) as sut:
        sut.begin(trial())
        assert corpus_of(sut).kept == []
        sut.check(ONCE)
        sut.check(TWICE)
        sut.end()
        sut.begin(trial("REUSE-2"))
        assert corpus_of(sut).kept == []
        sut.end()
    with crossed_engines(
        tmp_path / "second", tampering(honest), tampering(honest), guided=True, cache_dir=cache
    ) as sut:
        sut.begin(trial())
        assert [one.workload for one in corpus_of(sut).kept] == [ONCE, TWICE]
        assert "age/requests/2" in corpus_of(sut).kept[1].states


@pytest.mark.parametrize(("guided", "name"), [(False, "REUSE-1"), (True, "GROUND-1")])
def test_other_trials_draw_as_ever(guided: bool, name: str, tmp_path: Path) -> None:
    """The option may be off, or the requirement may be about the engine without its cache."""
    with crossed_engines(tmp_path, tampering(honest), tampering(honest), guided=guided) as sut:
        sut.begin(trial(name))
        assert sut.limits.guidance is None
        sut.end()
    assert not list(tmp_path.glob("**/reach/**/*.json"))


def test_each_example_reports_what_it_reached(tmp_path: Path) -> None:
    """This holds with and without guidance."""
    with crossed_engines(tmp_path, tampering(honest), tampering(honest)) as sut:
        sut.begin(trial())
        sut.check(TWICE)
        sut.end()
    events = [json.loads(line) for line in (tmp_path / "events.ndjson").read_text().splitlines()]
    (example,) = [event for event in events if event["event"] == "example"]
    assert example["reach"]["again/nothing/most"] == 1
    assert example["seen"] == ["the engine reports cached-token counts"]
    assert msgspec.json.decode(msgspec.json.encode(example["history"]["workload"]), type=Workload) == TWICE
