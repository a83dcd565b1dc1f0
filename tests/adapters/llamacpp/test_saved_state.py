"""Saved and restored cache state: steps, bounds, evidence, workloads, scripts and injected faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from support.histories import ask, burst, history, outcome, play, put, record, shape
from support.scripts import case_of
from support.start_options import start_options

from coldproof.adapters.llamacpp.setup import capabilities, flags, states_folder
from coldproof.adapters.llamacpp.spec import CELLS
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import AdapterError, CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.registry import reproduction_of
from coldproof.harness.case.reproducer.script import recorded_engine, reproducer
from coldproof.harness.case.signature import signature
from coldproof.harness.features.saved_state.evidence import SavedState, saved_state_facts
from coldproof.harness.features.tiers.workloads import restored_for_others, saved_and_restored
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.reference_cache import bounds
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import BLOCK, ClosedFormOracle, ScriptedEngine
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, RestoreState, SaveState, SetAdapter, Step, Workload, save_of
from coldproof.harness.workload.validity import is_valid

LIMITS = WorkloadLimits(block=1, slots=2, contents=("A", "B"), mixtures=frozenset(), longest=2048)
SLOT = shape(block_size=1, sequences=1, pool_blocks=2048)
KEPT, BACK = SaveState("kept"), RestoreState("kept")
STEM = burst(ask(("stem", 40)))
STRANGE = burst(ask(("strange", 30)))
FIRST, OTHER = range(100, 140), range(500, 540)


class Saving(ScriptedEngine):
    """A scripted engine that saves its blocks and restores them."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = {**self.capabilities, Capability.SAVED_STATE: Support(True, "a dictionary")}
        self.saved: dict[str, dict[object, tuple[bytes, ...]]] = {}

    def save_state(self, name: str) -> int:
        """Save a copy of the blocks and return its tokens."""
        self.saved[name] = dict(self.blocks)
        return BLOCK * len(self.blocks)

    def restore_state(self, name: str) -> int:
        """Replace the blocks by the saved copy and return its tokens."""
        if name not in self.saved:
            raise RequestRefused(404, f"nothing was saved as {name}")
        self.blocks = dict(self.saved[name])
        return BLOCK * len(self.blocks)


class RestoresTheWrongBlocks(Saving):
    """An engine that does not restore the last slot of each block."""

    def restore_state(self, name: str) -> int:
        """Restore the blocks without their last slots."""
        tokens = super().restore_state(name)
        self.blocks = {key: (*kv[:-1], b"unwritten") for key, kv in self.blocks.items()}
        return tokens


class IgnoresAdaptersOnRestore(Saving):
    """An engine whose restored blocks serve any request, whatever adapter they were computed for."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = False

    def restore_state(self, name: str) -> int:
        """Restore the blocks, and ignore adapters from now on."""
        self.forgets = True
        return super().restore_state(name)

    def keys(self, request: CompletionRequest, tokens: list[int]) -> list[object]:
        """Return the keys of the adapter that was loaded first, whatever adapter the request names."""
        adapters = [name for name in self.contents if self.contents[name] == self.contents[min(self.contents)]]
        request = msgspec.structs.replace(request, model=adapters[0]) if self.forgets and adapters else request
        return super().keys(request, tokens)


class ReportsRestore(Saving):
    """An engine that reports a given result of a restore."""

    def __init__(self, said: Any) -> None:
        super().__init__()
        self.said = said

    def restore_state(self, name: str) -> int:
        """Return the given result."""
        return self.said  # type: ignore[no-any-return]


def wrong(seen: History) -> list[FailureClass]:
    """Return the failure classes of the findings on a history."""
    return [finding.failure_class for finding in judge(seen, ClosedFormOracle(), EXACT, exclusive=True).findings]


def test_a_restored_state_hits_and_answers_as_cold(tmp_path: Path) -> None:
    """What was computed between save and restore is evicted, and that is no fault."""
    seen = play(Saving(), tmp_path, STEM, KEPT, STRANGE, BACK, STEM, STRANGE)
    assert wrong(seen) == []
    assert [o.cached_tokens for o in seen.outcomes] == [0, 0, 40, 0]
    assert [r.moved_tokens for r in seen.steps][1:4] == [48, None, 48]
    assert saved_state_facts(seen)[SavedState.RESTORED] == 1


def test_a_corrupt_restore_is_detected(tmp_path: Path) -> None:
    """The answer shows the corrupt blocks."""
    assert FailureClass.CORRUPT in wrong(play(RestoresTheWrongBlocks(), tmp_path, STEM, KEPT, STRANGE, BACK, STEM))


def test_a_restore_that_ignores_adapters_is_detected(tmp_path: Path) -> None:
    """Answer and count show it, and the evidence says that the workload could have shown it."""
    steps = (put("A", name="a"), put("B", name="b"), burst(ask(("stem", 40), adapter="a")), KEPT, BACK)
    reported = play(IgnoresAdaptersOnRestore(), tmp_path / "planted", *steps, burst(ask(("stem", 40), adapter="b")))
    assert FailureClass.STALE_STATE in wrong(reported)
    assert saved_state_facts(reported)[SavedState.RESTORED_ELSE] == 1
    clean = play(Saving(), tmp_path / "clean", *steps, burst(ask(("stem", 40), adapter="b")))
    assert wrong(clean) == []


def test_an_engine_that_cannot_save_refuses(tmp_path: Path) -> None:
    """The step fails with the reason. In a suite the requirement is unsupported before such a step."""
    seen = play(ScriptedEngine(), tmp_path, STEM, KEPT)
    assert "501" in str(seen.steps[1].error)
    with pytest.raises(RequestRefused, match="cannot save its cache"):
        CheckedEngine(ScriptedEngine()).save_state("kept")
    assert CheckedEngine(Saving()).save_state("kept") == 0


@pytest.mark.parametrize("said", [None, True, -1, "all"])
def test_an_adapter_reports_how_much_it_moved(said: object) -> None:
    """The adapter has to return the number of restored tokens: a status is not an effect."""
    with pytest.raises(AdapterError, match="expected a number of tokens"):
        CheckedEngine(ReportsRestore(said)).restore_state("kept")


def test_an_adapter_that_reports_saving_can_save() -> None:
    """A capability without its method is a fault of the adapter."""
    engine = ScriptedEngine()
    engine.capabilities = {**engine.capabilities, Capability.SAVED_STATE: Support(True, "said")}
    with pytest.raises(AdapterError, match=r"reports the capability .* \(said\) but has no save_state"):
        CheckedEngine(engine).save_state("kept")


def slot_history(*steps: Step, hits: int = 0, third: str | None = None, between: str | None = None) -> History:
    """Return a history of one slot: the first prompt, a step, another prompt, a step, and the first prompt again."""
    outcomes: list[Outcome] = []
    plans = [(FIRST, None), (OTHER, between), (FIRST, third)]
    numbered = [n for n, step in enumerate(steps) if isinstance(step, Burst)]
    for number, (step, (prompt, adapter)) in enumerate(zip(numbered, plans, strict=True)):
        hit = hits if number == 2 else 0
        outcomes.append(msgspec.structs.replace(outcome(number, prompt, adapter=adapter, cached_tokens=hit), step=step))
    records = tuple(record(n, moved_tokens=42) for n in range(len(steps)))
    return history(*outcomes, workload=Workload(steps), steps=records, shape=SLOT)


def test_a_restore_is_expected_to_hit_what_was_saved() -> None:
    """The expected hit is that at the time of the save, as if nothing had run in between."""
    assert bounds(slot_history(STEM, KEPT, STRANGE, BACK, STEM))[2].at_least == 39
    assert bounds(slot_history(STEM, STRANGE, STEM))[2].at_least is None
    assert bounds(slot_history(STEM, KEPT, STRANGE, KEPT, BACK, STEM))[2].at_least is None


def test_no_hit_is_expected_where_another_adapter_came_in_between() -> None:
    """An engine may drop a restored state when another adapter was used in between, so no hit is expected."""
    assert bounds(slot_history(STEM, KEPT, STRANGE, BACK, STEM, between="x"))[2].at_least is None


def test_evidence_of_a_restore_is_a_hit_that_nothing_else_explains() -> None:
    """Only a hit that nothing else explains counts: not later prompts, a shared nonce, or an empty restore."""
    seen = slot_history(STEM, KEPT, STRANGE, BACK, STEM, hits=39)
    assert saved_state_facts(seen)[SavedState.RESTORED] == 1
    assert saved_state_facts(slot_history(STEM, KEPT, STRANGE, BACK, STEM, hits=3))[SavedState.RESTORED] == 0
    assert saved_state_facts(slot_history(STEM, KEPT, STRANGE, STEM, BACK, hits=39))[SavedState.RESTORED] == 0
    nothing = msgspec.structs.replace(seen, steps=tuple(record(n) for n in range(5)))
    assert saved_state_facts(nothing)[SavedState.RESTORED] == 0
    other = slot_history(STEM, KEPT, STRANGE, BACK, STEM, third="b")
    assert saved_state_facts(other)[SavedState.RESTORED_ELSE] == 1
    assert saved_state_facts(seen)[SavedState.RESTORED_ELSE] == 0


def test_a_restore_needs_a_save() -> None:
    """A restore uses the latest save of its name, and a workload without such a save is invalid."""
    story = Workload((KEPT, STEM, KEPT, STRANGE, BACK, STEM))
    assert save_of(story, 4) == 2
    assert save_of(story, 3) is None
    assert is_valid(story)
    assert not is_valid(Workload((SaveState("other"), STEM, BACK)))
    assert not is_valid(Workload((BACK, STEM, KEPT)))


def test_steps_survive_json_and_are_described() -> None:
    """The signature of a failure names a restore, and steps are equal after a JSON round trip."""
    story = Workload((STEM, KEPT, STRANGE, BACK, STEM))
    assert msgspec.json.decode(msgspec.json.encode(story), type=Workload) == story
    assert describe(KEPT, 0) == "save the cache as 'kept'"
    assert describe(BACK, 0) == "restore the cache saved as 'kept'"
    assert signature(slot_history(*story.steps), FailureClass.CORRUPT) == "corrupt; no reload; restored"


def test_a_case_has_the_routes() -> None:
    """The script has one call for each slot."""
    case = case_of("llamacpp", STEM, KEPT, STRANGE, BACK, STEM)
    command = "llama-server --model /x/m.gguf --port 1 --parallel 1 --slot-save-path /x/slots --parallel 2"
    case = msgspec.structs.replace(case, engine_config={"command": command, "model": "/x/models/0123456789abcdef"})
    assert "story.save('kept')" in reproducer(case)
    assert "story.restore('kept')" in reproducer(case)
    assert "--slot-save-path coldproof-files/slots" in reproduction_of(case.engine).command(recorded_engine(case))


def test_slots_are_saved_where_only_this_engine_saves(tmp_path: Path) -> None:
    """States are saved in a folder of the engine unless another folder is given. Without a folder none are saved."""
    here = start_options(CELLS[0], "--slot-save-path", "s", log=tmp_path / "e-1.log")
    said = flags(here, [], 1)
    assert said[said.index("--slot-save-path") + 1] == str(tmp_path / "e-1.gguf" / "s")
    assert capabilities(here, "1")[Capability.SAVED_STATE].present
    theirs = msgspec.structs.replace(here, arguments=("--slot-save-path", "/there"))
    assert states_folder(theirs) == Path("/there")
    none = msgspec.structs.replace(here, arguments=())
    assert capabilities(none, "1")[Capability.SAVED_STATE] == Support(False, "no --slot-save-path")


@settings(max_examples=60, deadline=None, database=None)
@given(st.one_of(saved_and_restored(LIMITS), restored_for_others(LIMITS)))
def test_workloads_with_restores_are_valid(story: Workload) -> None:
    """Each workload restores what it saved, and is valid."""
    assert is_valid(story)
    assert any(isinstance(step, RestoreState) for step in story.steps)


@settings(max_examples=60, deadline=None, database=None)
@given(restored_for_others(LIMITS))
def test_a_wrong_answer_is_caused_by_the_restore(story: Workload) -> None:
    """No request to the base model follows an adapter's request without a restore between them, so the restore is
    the cause.
    """
    last: str | None = None
    for step in story.steps:
        if isinstance(step, RestoreState):
            last = None
        elif isinstance(step, Burst):
            assert last is None or step.requests[0].adapter is not None
            last = step.requests[0].adapter


def test_the_smallest_workloads() -> None:
    """Minimisation ends at the workload that a person would have written."""
    plain = find(saved_and_restored(LIMITS), lambda story: True)
    assert [type(step).__name__ for step in plain.steps] == ["Burst", "SaveState", "Burst", "RestoreState", "Burst"]
    others = find(restored_for_others(LIMITS), lambda story: True)
    assert {step.content for step in others.steps if isinstance(step, SetAdapter)} == {"A", "B"}
