"""Distributions of what a requirement's examples did: correct bins, computed from the recorded events."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.evidence import evidence
from support.histories import history, outcome

from coldproof.adapters.protocol.requests import Abort, Stage
from coldproof.harness import features
from coldproof.harness.event_log import EventLog
from coldproof.harness.judgement import checkers
from coldproof.harness.judgement.criteria import BOUNDS, CRITERIA, NOT_OF_SHARED_ENGINES, failing_checks
from coldproof.harness.judgement.evidence.cache import Pressure
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import Requirement, address, requirement
from coldproof.harness.schema.results import Results
from coldproof.harness.workload.steps import Burst, Meanwhile, Prompt, Request, Route, Segment, SetAdapter, Workload
from coldproof.reports.assemble.assemble import assemble, read_events
from coldproof.reports.assemble.distributions import History, bin_index, bin_label, distributions, tally

ASK = Request(prompt=Prompt((Segment("stem", 40),)))


def bins_of(*examples: dict[str, Any], evidence: dict[str, float] | None = None) -> dict[str, dict[str, int]]:
    """Return the bins of each distribution over some examples' JSON."""
    tallies = [tally(msgspec.convert(example, History), evidence or {}) for example in examples]
    return {d.name: {b.label: b.count for b in d.bins} for d in distributions(tallies)}


@pytest.mark.parametrize(
    ("first", "spans"),
    [(1, ["0", "1", "2–3", "4–7", "8–15"]), (16, ["0", "1–15", "16–31", "32–63", "64–127"])],
)
def test_bins_double_and_leave_no_number_out(first: int, spans: list[str]) -> None:
    """Every number is in the bin whose label contains it."""
    assert [bin_label(n, first) for n in range(len(spans))] == spans
    for value in range(128 if first > 1 else 16):
        low, _, high = spans[bin_index(value, first)].partition("–")
        assert int(low) <= value <= int(high or low)


def test_hit_lengths_are_of_the_requests_that_reported_them() -> None:
    """Empty bins between two lengths count zero; a request that reports no count is in no bin."""
    seen = bins_of({"outcomes": [{"cached_tokens": n} for n in (0, 64, 70, None, 16)]})
    assert seen == {"Cached tokens of a request": {"0": 1, "1–15": 0, "16–31": 1, "32–63": 0, "64–127": 2}}


def test_a_distribution_without_hits_is_shown() -> None:
    """A distribution without evictions or preemptions is not shown, because it proves nothing about them."""
    assert bins_of({"outcomes": [{"cached_tokens": 0}]}) == {"Cached tokens of a request": {"0": 1}}
    assert bins_of({"outcomes": [{}]}) == {}


def test_evictions_and_preemptions_are_counted_by_example() -> None:
    """Examples without any are counted once there is an example with some."""
    some = tally(History(), {Pressure.EVICTED: 40.0, Pressure.PREEMPTIONS: 3.0})
    none = tally(History(), {Pressure.EVICTED: 0.0})
    by_name = {d.name: d for d in distributions([none, some, none])}
    assert by_name.keys() == {"Evicted prompt tokens in an example", "Preemptions in an example"}
    assert [(b.label, b.count) for b in by_name["Preemptions in an example"].bins] == [("0", 2), ("1", 0), ("2–3", 1)]
    assert {d.unit for d in by_name.values()} == {"examples"}


def test_an_example_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Distributions are read from the events of a run, without other requirements' examples and incomplete lines."""
    results = run(tmp_path / "events.ndjson")
    found = {d.name: {b.label: b.count for b in d.bins} for d in results.requirements[0].distributions}
    assert found == {
        "Cached tokens of a request": {"0": 1, "1–15": 0, "16–31": 1},
        "Stage of a request when its client disconnected": {"while decoding": 1},
        "Routes of adapter changes": {
            "in-place reload, while requests ran": 1, "load": 1, "unload, then load": 1,
        },
    }  # fmt: skip
    assert results.requirements[0].upstream == ["https://github.com/vllm-project/vllm/issues/42125"]
    checks = {**CRITERIA, BOUNDS: f"{CRITERIA[BOUNDS]} {NOT_OF_SHARED_ENGINES}"}
    assert results.requirements[0].fails_on == list(checks.values())[:-1]
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results


def run(path: Path) -> Results:
    """Return a run with one example that loads an adapter, changes it twice, once under traffic, and another
    requirement.
    """
    changes = [
        SetAdapter(name="tenant", content=c, path=c, route=r) for c, r in zip("ABC", list(Route)[:3], strict=True)
    ]
    burst = Burst(
        requests=(ASK, msgspec.structs.replace(ASK, abort=Abort(after_tokens=2))),
        meanwhile=Meanwhile(change=changes[1], after_tokens=1),
    )
    outcomes = (outcome(0, range(40), cached_tokens=0), outcome(1, range(40), cached_tokens=16, aborted=Stage.DECODE))
    seen = msgspec.structs.replace(history(*outcomes), workload=Workload((changes[0], burst, changes[2])))
    known = Requirement("LORA-1", "reload", (), (Requests.HITS,), upstream=(address("vllm#42125"),))
    log = EventLog(path)
    log.emit(
        "run_started", version="0", started="", command="", profile="", seed="1", environment={}, allowed=[], fault=None
    )
    log.emit(
        "requirement",
        id=known.id,
        title=known.title,
        statement="s",
        parts={},
        shows=known.shows,
        upstream=known.upstream,
        fails_on=failing_checks(known),
        cell="default",
        test="test_it",
    )
    for name in ("LORA-1", "SALT-1"):
        log.emit(
            "example",
            requirement=name,
            cell="default",
            history=seen,
            evidence=evidence(history(), {}),
            weight_pairs=[],
            findings=[],
            reach={},
            seen=[],
        )
    log.close()
    path.write_bytes(path.read_bytes() + b'{"event":"example","requirement":"LORA-1","hist')
    return assemble(read_events(path))


# What a requirement declares


def test_a_report_is_named_in_short_and_linked_in_full() -> None:
    """Only known repositories are accepted, because a typing error must not become a dead link."""
    assert address("llama.cpp#26207") == "https://github.com/ggml-org/llama.cpp/issues/26207"
    for wrong in ("vllm #1", "vlm#1", "vllm#", "vllm#0", "https://github.com/a/b/issues/1", "#5"):
        with pytest.raises(ValueError, match="not a report of a known repository"):
            requirement("R-1", "title", shows=(Requests.HITS,), upstream=(wrong,))


def test_every_checker_describes_its_failure() -> None:
    """A new checker cannot be left out."""
    of_features = Path(features.__file__).parent.glob("*/*checks.py")
    sources = [path.read_text() for path in (*Path(checkers.__file__).parent.glob("*.py"), *of_features)]
    assert all(CRITERIA.values())
    assert set(CRITERIA) == {name for source in sources for name in re.findall(r'checker="([\w ]+)"', source)}


def test_checks_of_other_requirements_are_not_listed() -> None:
    """Hashes belong to EVENT-3, and answers that a change overlapped belong to LORA-6."""
    plain, hashes, overlapped = (
        " ".join(failing_checks(Requirement("R-1", "t", (), (Requests.HITS,), **changes)))
        for changes in ({}, {"hashes_too": True}, {"overlapped_too": False})
    )
    assert CRITERIA["hashes"] in hashes
    assert CRITERIA["hashes"] not in plain
    assert "that overlap an adapter change" in overlapped
    assert "that overlap an adapter change" not in plain
