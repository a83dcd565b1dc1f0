"""What is cached is saved under a name and restored: steps, bounds, evidence, stories, scripts, and planted faults."""

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
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.evidence.engine_features import Modes, mode_facts
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.reference_cache import bounds
from coldproof.harness.session.selftest.scripted_engine import BLOCK, ClosedFormOracle, ScriptedEngine
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.tiers import restored_for_others, saved_and_restored
from coldproof.harness.workload.steps import Burst, RestoreState, SaveState, SetAdapter, Step, Workload, save_of
from coldproof.harness.workload.validity import is_valid
from coldproof.reports.schema.verdict import FailureClass

LIMITS = WorkloadLimits(block=1, slots=2, contents=("A", "B"), mixtures=frozenset(), longest=2048)
SLOT = shape(block_size=1, sequences=1, pool_blocks=2048)
KEPT, BACK = SaveState("kept"), RestoreState("kept")
STEM = burst(ask(("stem", 40)))
STRANGE = burst(ask(("strange", 30)))
FIRST, OTHER = range(100, 140), range(500, 540)


class Saving(ScriptedEngine):
    """Saves its blocks, and restores them."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = {**self.capabilities, Capability.SAVED_STATE: Support(True, "a dictionary")}
        self.saved: dict[str, dict[object, tuple[bytes, ...]]] = {}

    def save_state(self, name: str) -> int:
        """A copy."""
        self.saved[name] = dict(self.blocks)
        return BLOCK * len(self.blocks)

    def restore_state(self, name: str) -> int:
        """The copy in place of what there is."""
        if name not in self.saved:
            raise RequestRefused(404, f"nothing was saved as {name}")
        self.blocks = dict(self.saved[name])
        return BLOCK * len(self.blocks)


class RestoresTheWrongBlocks(Saving):
    """The last slot of each block is not written back."""

    def restore_state(self, name: str) -> int:
        """All but that."""
        tokens = super().restore_state(name)
        self.blocks = {key: (*kv[:-1], b"unwritten") for key, kv in self.blocks.items()}
        return tokens


class RestoresForAnybody(Saving):
    """What is restored serves whoever asks first, whatever it was computed for."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = False

    def restore_state(self, name: str) -> int:
        """From here on."""
        self.forgets = True
        return super().restore_state(name)

    def keys(self, request: CompletionRequest, tokens: list[int]) -> list[object]:
        """Those of the adapter that was loaded first."""
        adapters = [name for name in self.contents if self.contents[name] == self.contents[min(self.contents)]]
        request = msgspec.structs.replace(request, model=adapters[0]) if self.forgets and adapters else request
        return super().keys(request, tokens)


class Restoring(Saving):
    """Says what it wants."""

    def __init__(self, said: Any) -> None:
        super().__init__()
        self.said = said

    def restore_state(self, name: str) -> int:
        """As it was told."""
        return self.said  # type: ignore[no-any-return]


def wrong(seen: History) -> list[FailureClass]:
    """The classes of what is wrong with it."""
    return [finding.failure_class for finding in judge(seen, ClosedFormOracle(), EXACT, exclusive=True).findings]


def test_what_was_restored_is_hit_and_answers_as_cold(tmp_path: Path) -> None:
    """And what came in between is gone, which nobody is blamed for."""
    seen = play(Saving(), tmp_path, STEM, KEPT, STRANGE, BACK, STEM, STRANGE)
    assert wrong(seen) == []
    assert [o.cached_tokens for o in seen.outcomes] == [0, 0, 40, 0]
    assert [r.moved_tokens for r in seen.steps][1:4] == [48, None, 48]
    assert mode_facts(seen)[Modes.RESTORED] == 1


def test_a_restore_that_garbles_is_noticed(tmp_path: Path) -> None:
    """By the answer."""
    assert FailureClass.CORRUPT in wrong(play(RestoresTheWrongBlocks(), tmp_path, STEM, KEPT, STRANGE, BACK, STEM))


def test_a_restore_that_forgets_whose_it_was_is_noticed(tmp_path: Path) -> None:
    """By the answer and the count; and it could have been, which is evidence."""
    steps = (put("A", name="a"), put("B", name="b"), burst(ask(("stem", 40), adapter="a")), KEPT, BACK)
    told = play(RestoresForAnybody(), tmp_path / "planted", *steps, burst(ask(("stem", 40), adapter="b")))
    assert FailureClass.STALE_STATE in wrong(told)
    assert mode_facts(told)[Modes.RESTORED_ELSE] == 1
    clean = play(Saving(), tmp_path / "clean", *steps, burst(ask(("stem", 40), adapter="b")))
    assert wrong(clean) == []


def test_an_engine_that_cannot_save_refuses(tmp_path: Path) -> None:
    """The step failed, and says why; in a suite the requirement is unsupported before it comes to that."""
    seen = play(ScriptedEngine(), tmp_path, STEM, KEPT)
    assert "501" in str(seen.steps[1].error)
    with pytest.raises(RequestRefused, match="cannot save its cache"):
        CheckedEngine(ScriptedEngine()).save_state("kept")
    assert CheckedEngine(Saving()).save_state("kept") == 0


@pytest.mark.parametrize("said", [None, True, -1, "all"])
def test_an_adapter_says_how_much_it_moved(said: object) -> None:
    """A status is not an effect."""
    with pytest.raises(AdapterError, match="expected a number of tokens"):
        CheckedEngine(Restoring(said)).restore_state("kept")


def test_an_adapter_that_says_it_saves_can() -> None:
    """Otherwise it is the adapter's fault, and nobody else's."""
    engine = ScriptedEngine()
    engine.capabilities = {**engine.capabilities, Capability.SAVED_STATE: Support(True, "said")}
    with pytest.raises(AdapterError, match=r"reports the capability .* \(said\) but has no save_state"):
        CheckedEngine(engine).save_state("kept")


def slot_history(*steps: Step, hits: int = 0, third: str | None = None, between: str | None = None) -> History:
    """The first prompt, something, another prompt, something, the first prompt again, in one slot."""
    outcomes: list[Outcome] = []
    plans = [(FIRST, None), (OTHER, between), (FIRST, third)]
    numbered = [n for n, step in enumerate(steps) if isinstance(step, Burst)]
    for number, (step, (prompt, adapter)) in enumerate(zip(numbered, plans, strict=True)):
        hit = hits if number == 2 else 0
        outcomes.append(msgspec.structs.replace(outcome(number, prompt, adapter=adapter, cached_tokens=hit), step=step))
    records = tuple(record(n, moved_tokens=42) for n in range(len(steps)))
    return history(*outcomes, workload=Workload(steps), steps=records, shape=SLOT)


def test_a_restore_is_owed_what_was_there_at_its_save() -> None:
    """As if nobody had come in between."""
    assert bounds(slot_history(STEM, KEPT, STRANGE, BACK, STEM))[2].at_least == 39
    assert bounds(slot_history(STEM, STRANGE, STEM))[2].at_least is None
    assert bounds(slot_history(STEM, KEPT, STRANGE, KEPT, BACK, STEM))[2].at_least is None


def test_nothing_is_owed_where_another_adapter_came_in_between() -> None:
    """An engine may hold that what it restores is the last one's, and drop it for anybody else."""
    assert bounds(slot_history(STEM, KEPT, STRANGE, BACK, STEM, between="x"))[2].at_least is None


def test_evidence_of_a_restore_is_a_hit_that_nothing_else_explains() -> None:
    """Not what was computed since the save, nor a nonce that all share, nor a restore of nothing."""
    seen = slot_history(STEM, KEPT, STRANGE, BACK, STEM, hits=39)
    assert mode_facts(seen)[Modes.RESTORED] == 1
    assert mode_facts(slot_history(STEM, KEPT, STRANGE, BACK, STEM, hits=3))[Modes.RESTORED] == 0
    assert mode_facts(slot_history(STEM, KEPT, STRANGE, STEM, BACK, hits=39))[Modes.RESTORED] == 0
    nothing = msgspec.structs.replace(seen, steps=tuple(record(n) for n in range(5)))
    assert mode_facts(nothing)[Modes.RESTORED] == 0
    other = slot_history(STEM, KEPT, STRANGE, BACK, STEM, third="b")
    assert mode_facts(other)[Modes.RESTORED_ELSE] == 1
    assert mode_facts(seen)[Modes.RESTORED_ELSE] == 0


def test_a_restore_needs_a_save() -> None:
    """The latest one of its name; a workload without it makes no sense."""
    story = Workload((KEPT, STEM, KEPT, STRANGE, BACK, STEM))
    assert save_of(story, 4) == 2
    assert save_of(story, 3) is None
    assert is_valid(story)
    assert not is_valid(Workload((SaveState("other"), STEM, BACK)))
    assert not is_valid(Workload((BACK, STEM, KEPT)))


def test_steps_survive_json_and_are_told_in_words() -> None:
    """And a failure with a restore in it is told from one without."""
    story = Workload((STEM, KEPT, STRANGE, BACK, STEM))
    assert msgspec.json.decode(msgspec.json.encode(story), type=Workload) == story
    assert describe(KEPT, 0) == "save the cache as 'kept'"
    assert describe(BACK, 0) == "restore the cache saved as 'kept'"
    assert signature(slot_history(*story.steps), FailureClass.CORRUPT) == "corrupt; no reload; restored"


def test_a_case_has_the_routes() -> None:
    """As calls of the script."""
    case = case_of("llamacpp", STEM, KEPT, STRANGE, BACK, STEM)
    command = "llama-server --model /x/m.gguf --port 1 --parallel 1 --slot-save-path /x/slots --parallel 2"
    case = msgspec.structs.replace(case, engine_config={"command": command, "model": "/x/models/0123456789abcdef"})
    assert "story.save('kept')" in reproducer(case)
    assert "story.restore('kept')" in reproducer(case)
    assert "--slot-save-path coldproof-files/slots" in reproduction_of(case.engine).command(recorded_engine(case))


def test_slots_are_saved_where_only_this_engine_saves(tmp_path: Path) -> None:
    """A folder beside its other files, unless somebody wants another; and without one nothing is saved."""
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
def test_stories_make_sense(story: Workload) -> None:
    """Each restores what it saved, and fits."""
    assert is_valid(story)
    assert any(isinstance(step, RestoreState) for step in story.steps)


@settings(max_examples=60, deadline=None, database=None)
@given(restored_for_others(LIMITS))
def test_who_is_found_wrong_is_so_for_the_restore(story: Workload) -> None:
    """Nobody asks the base model behind an adapter's request with no restore between them."""
    last: str | None = None
    for step in story.steps:
        if isinstance(step, RestoreState):
            last = None
        elif isinstance(step, Burst):
            assert last is None or step.requests[0].adapter is not None
            last = step.requests[0].adapter


def test_the_plainest_stories() -> None:
    """What shrinking ends at is what a person would have written."""
    plain = find(saved_and_restored(LIMITS), lambda story: True)
    assert [type(step).__name__ for step in plain.steps] == ["Burst", "SaveState", "Burst", "RestoreState", "Burst"]
    others = find(restored_for_others(LIMITS), lambda story: True)
    assert {step.content for step in others.steps if isinstance(step, SetAdapter)} == {"A", "B"}
