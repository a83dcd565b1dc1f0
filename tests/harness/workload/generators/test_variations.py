"""Variations give valid and affordable workloads, and extend what a generator draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.drawn_workloads import LIMITS, SLOW, limits
from support.histories import ask, burst, put
from support.nightly import with_samples
from support.workload_families import FAMILIES

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.tiers.workloads import partitions, sent_again_after_gaps
from coldproof.harness.workload.editing import Draft
from coldproof.harness.workload.generators import guidance
from coldproof.harness.workload.generators.guidance import with_variations
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.variations import VARIATIONS, fits, may_vary, varied_workload
from coldproof.harness.workload.steps import Burst, Idle, Reset, Restart, Route, UpdateWeights, Workload
from coldproof.harness.workload.validity import is_valid

ROOMY = limits(most_tokens=100_000)
TURNS = Workload((burst(ask(("stem", 60))), burst(ask(("turn", 5), continues=0)), burst(ask(("turn", 5), continues=1))))


def variations(workload: Workload, on: WorkloadLimits = ROOMY, count: int = 1500) -> list[Workload]:
    """Return many variations of a workload."""
    return [varied_workload(workload, on, Random(seed)) for seed in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_variation_of_each_family_can_be_run_and_afforded(family: str) -> None:
    """This draws a sample within one set of limits."""
    check_variations(family, LIMITS["tight"], examples=2)


@pytest.mark.nightly
@pytest.mark.parametrize("on", [LIMITS["tight"], LIMITS["roomy"]], ids=("tight", "roomy"))
@pytest.mark.parametrize("family", FAMILIES)
def test_variations_can_be_run_and_afforded(family: str, on: WorkloadLimits) -> None:
    """Each run draws new examples."""
    check_variations(family, on, examples=10)


def check_variations(family: str, on: WorkloadLimits, *, examples: int) -> None:
    """Check variations of generated workloads; the same seed gives the same variation."""

    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=SLOW)
    @given(workload=FAMILIES[family](on), seed=st.integers(0, 2**32 - 1))
    def check(workload: Workload, seed: int) -> None:
        varied = varied_workload(workload, on, Random(seed))
        assert varied == varied_workload(workload, on, Random(seed))
        assert msgspec.json.decode(msgspec.json.encode(varied), type=Workload) == varied
        assert is_valid(varied)
        assert varied == workload or fits(varied, on)

    check()


@pytest.mark.parametrize("variation", dict.fromkeys(VARIATIONS), ids=lambda one: one.__name__)
def test_every_variation_changes_something(variation: Callable[[Draft, WorkloadLimits, Random], None]) -> None:
    """A variation that never changes anything would only seem to be tested."""
    sent = burst(ask(("stem", 60)), ask(("other", 60)))
    reload = (put("A"), put("B", route=Route.IN_PLACE))
    plain = Workload((sent, Idle(20), *reload, burst(ask(("stem", 60), max_tokens=9))))
    changed = set()
    for seed in range(60):
        draft = Draft(plain)
        variation(draft, limits(pool=512, longest=512), Random(seed))
        changed.add(draft.workload())
    assert len(changed - {plain, None}) > 0


WIDE: dict[str, Callable[[Workload], object]] = {
    "a burst sixty-four times": lambda w: max(Counter(w.steps).values()) >= 64,
    "seventeen requests at once": lambda w: any(isinstance(s, Burst) and len(s.requests) >= 17 for s in w.steps),
    "sixteen salts": lambda w: len({r.salt for _, _, r in w.requests()}) >= 16,
    "salts of more than 100 characters": lambda w: any(len(r.salt or "") > 100 for _, _, r in w.requests()),
    "priorities of both signs": lambda w: (
        min(r.priority for _, _, r in w.requests()) < 0 < max(r.priority for _, _, r in w.requests())
    ),
    "an abort at the first token": lambda w: any(r.abort and r.abort.after_tokens == 1 for _, _, r in w.requests()),
    "an abort before the last token": lambda w: any(
        r.abort and r.abort.after_tokens == r.max_tokens - 1 > 1 for _, _, r in w.requests()
    ),
    "a reset between requests": lambda w: any(isinstance(s, Reset) for s in w.steps[1:-1]),
    "a reset during an answer": lambda w: any(isinstance(s, Burst) and s.meanwhile for s in w.steps),
    "an answer of four blocks": lambda w: any(r.max_tokens >= 128 for _, _, r in w.requests()),
    "the longest prompt": lambda w: any(sum(s.length for s in r.prompt.segments) > 1900 for _, _, r in w.requests()),
}


@pytest.mark.parametrize("wanted", WIDE)
def test_variations_reach_what_generators_do_not_draw(wanted: str) -> None:
    """The variations start from two plain requests."""
    plain = Workload((burst(ask(("stem", 60)), ask(("other", 60))), burst(ask(("stem", 60)))))
    assert not WIDE[wanted](plain)
    assert any(WIDE[wanted](varied) for varied in variations(plain))


def test_a_reload_overlaps_requests_of_others_only() -> None:
    """An overlapped request of the same name may answer with either content, and LORA-6 is about such requests."""
    reload = put("B", route=Route.IN_PLACE)
    requests = burst(ask(("stem", 60), adapter="other"), ask(("more", 60)))
    plain = Workload((put("A"), put("C", name="other"), reload, requests, burst(ask(("stem", 60), adapter="tenant"))))
    moved = [step for varied in variations(plain) for step in varied.steps if step.meanwhile is not None]
    loads = [step for step in moved if step.meanwhile is not None and step.meanwhile.change == reload]
    assert loads
    alone = [step for step in loads if "tenant" not in {request.adapter for request in step.requests}]
    assert len(alone) > len(loads) / 2  # another variation may join bursts afterwards


def test_next_turns_still_continue_their_own_requests() -> None:
    """This holds whatever is inserted, repeated or moved before them."""
    for varied in variations(TURNS):
        requests = [request for _, _, request in varied.requests()]
        for request in requests:
            if request.prompt.continues is not None and request.prompt.segments[0].name == "turn":
                earlier = requests[request.prompt.continues]
                assert {segment.name for segment in earlier.prompt.segments} & {"stem", "turn"}


@pytest.mark.parametrize(
    "workload",
    [
        Workload((UpdateWeights(version="A"), *TURNS.steps)),
        Workload((*TURNS.steps, Restart(), burst(ask()))),
        Workload((put("A", path="p"), put("B", path="p", route=Route.IN_PLACE), burst(ask(adapter="tenant")))),
        Workload((burst(ask()), burst(ask(continues=0, cut=(8, None))))),
    ],
    ids=("update", "restart", "files at one path", "cut history"),
)
def test_what_depends_on_its_exact_steps_is_not_varied(workload: Workload) -> None:
    """A requirement about it depends on the order of its steps."""
    assert not may_vary(workload)
    assert varied_workload(workload, ROOMY, Random(1)) is workload


def test_mixtures_that_fail_without_a_cache_are_not_made() -> None:
    """GROUND-1 has found that base and adapter requests answer differently in one batch."""
    plain = Workload((put("A"), burst(ask(("stem", 60))), burst(ask(("stem", 60), adapter="tenant"))))
    mixed = [
        w
        for w in variations(plain)
        if any(isinstance(s, Burst) and len({r.adapter for r in s.requests}) > 1 for s in w.steps)
    ]
    assert mixed
    careful = msgspec.structs.replace(ROOMY, mixtures=frozenset())
    assert not [w for w in variations(plain, careful) if w in mixed]


def test_variations_use_only_capabilities_of_the_engine() -> None:
    """There are no resets, aborts, salts or priorities."""
    lacking = frozenset(
        {Capability.CACHE_RESET, Capability.ABORT, Capability.CACHE_SALT, Capability.PRIORITY, Capability.RESET_RUNNING}
    )
    poor = msgspec.structs.replace(ROOMY, can=ROOMY.can - lacking)
    for varied in variations(TURNS, poor):
        assert not any(isinstance(step, Reset) for step in varied.steps)
        assert not any(r.abort or r.salt or r.priority for _, _, r in varied.requests())


class FixedCorpus:
    """A corpus of one workload."""

    def choose(self, _random: Random) -> Workload | None:
        """Return the workload."""
        return TURNS


NESTED = {"partitions": partitions, "sent again after gaps": sent_again_after_gaps}


@pytest.mark.parametrize("family", with_samples([*FAMILIES, *NESTED], "mixed", "traffic", *NESTED))
def test_only_the_outermost_generator_draws_variations(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a generator draws after a variation of another one's workload would depend on the corpus. Hypothesis
    refuses draws that depend on what ran before.
    """
    inside: list[st.SearchStrategy[Workload]] = []
    strategy = {**FAMILIES, **NESTED}[family](msgspec.structs.replace(ROOMY, guidance=FixedCorpus()))
    monkeypatch.setattr(guidance, "with_variations", lambda plain, _limits: inside.append(plain) or plain)

    @settings(max_examples=20, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=SLOW)
    @given(strategy)
    def draw(workload: Workload) -> None:
        assert is_valid(workload)

    draw()
    assert inside == []


def test_guided_draws_are_plain_varied_and_from_the_corpus() -> None:
    """The simplest draw is plain, so that a counterexample is plain."""
    plain = Workload((burst(ask(("plain", 60))),))
    drawn: list[Workload] = []

    @settings(max_examples=200, deadline=None, database=None, phases=[Phase.generate])
    @given(with_variations(st.just(plain), msgspec.structs.replace(ROOMY, guidance=FixedCorpus())))
    def collect(workload: Workload) -> None:
        drawn.append(workload)

    collect()
    assert drawn[0] == plain
    assert TURNS in drawn
    names = [{s.name for _, _, r in w.requests() for s in r.prompt.segments} for w in drawn if w not in (plain, TURNS)]
    assert any("plain" in one for one in names)
    assert any("turn" in one for one in names)


def test_a_request_that_never_fits_is_no_variation() -> None:
    """The pool may be smaller than the longest request of the model, as some engines allow."""
    few = limits(pool=256, longest=512)
    assert fits(Workload((burst(ask(("stem", 200))),)), few)
    assert not fits(Workload((burst(ask(("stem", 300))),)), few)
    assert fits(Workload((burst(ask(("stem", 300))),)), limits(longest=512))
