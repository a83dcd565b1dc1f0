"""Each requirement of the cache's families is put to a real vLLM in which it is really broken, and says so.

The engine is stepped in this process, so that its own code can be broken by a fault of the catalogue; the suites' own
tests draw, run and judge, and the conductor concludes as in any run. They find nothing on the engine as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.budget import BudgetSpent
from harness.cell import Cell
from harness.cells import CELLS
from harness.conduct import Conductor, Role
from harness.options import PROFILES, Options, Profile
from harness.requirement import Requirement, Trial
from harness.session import Session
from reports.schema import Case, FailureClass, Verdict
from suites import test_chat_preludes as chats
from suites import test_control as control
from suites import test_memory_pressure as pressure
from suites import test_mixed as mixed
from suites import test_preemption as preemption
from suites import test_reuse as reuse
from suites import test_surface as surface
from tests.planting import plant

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
DEFAULT, TIGHT = CELLS["default"], CELLS["tight"]
# Requests may be longer here than the pool is: what the engine refuses to start with, unless it is broken.
OVERCOMMITTED = msgspec.structs.replace(
    TIGHT,
    arguments=("--num-gpu-blocks-override", "17", "--max-model-len", "1024", "--max-num-batched-tokens", "64"),
)
EXAMPLES = 12
WRONG = (FailureClass.STALE_STATE, FailureClass.CROSS_REQUEST, FailureClass.CORRUPT)
LOST = (FailureClass.LOST_REUSE,)
COUNTS = (FailureClass.ACCOUNTING,)
ANY_HIT = (*WRONG, *COUNTS)  # a hit that is none may show in the answer or in the count

BROKEN: list[tuple[Callable[..., None], str, Cell, tuple[FailureClass, ...]]] = [
    (chats.test_chats_that_share_a_prelude, "half-a-block-is-hashed", DEFAULT, ANY_HIT),
    (chats.test_prompts_that_share_a_prelude, "half-a-block-is-hashed", DEFAULT, ANY_HIT),
    (chats.test_next_turn_of_a_chat, "what-decode-writes-is-not-published", DEFAULT, LOST),
    (chats.test_next_turn_in_token_ids, "the-last-slot-is-published", DEFAULT, ANY_HIT),
    (reuse.test_a_prompt_sent_again, "the-last-block-is-dropped", DEFAULT, LOST),
    (reuse.test_a_prompt_sent_again, "hashes-differ-each-time", DEFAULT, LOST),
    (reuse.test_a_prompt_sent_again_after_others, "the-newest-blocks-go-first", DEFAULT, LOST),
    (reuse.test_counts_agree, "hits-are-counted-twice", DEFAULT, COUNTS),
    (pressure.test_working_set_larger_than_the_pool, "evicted-blocks-stay-in-the-index", TIGHT, ANY_HIT),
    (pressure.test_many_identical_long_prompts, "admission-asks-for-a-cold-prompts-blocks", TIGHT, LOST),
    (
        pressure.test_many_identical_long_prompts,
        "cached-blocks-do-not-count-as-free",
        TIGHT,
        (FailureClass.HANG, FailureClass.LOST_REUSE),
    ),
    (
        pressure.test_prompt_that_can_never_fit,
        "nobody-checks-that-the-pool-holds-a-prompt",
        OVERCOMMITTED,
        (FailureClass.HANG, FailureClass.NOT_THE_CACHE),
    ),
    (
        pressure.test_prompt_that_can_never_fit,
        "long-prompts-are-cut",
        TIGHT,
        (FailureClass.API, FailureClass.NOT_THE_CACHE),
    ),
    (
        pressure.test_every_block_comes_back,
        "aborted-requests-keep-their-blocks",
        TIGHT,
        (*COUNTS, FailureClass.HANG),
    ),
    (preemption.test_preempted_and_resumed, "the-resumed-believe-a-block-was-loaded", TIGHT, ANY_HIT),
    (
        preemption.test_whoever_comes_after_a_preemption,
        "blocks-of-the-preempted-stay-in-the-index",
        TIGHT,
        ANY_HIT,
    ),
    (control.test_cache_reset, "a-reset-only-says-so", DEFAULT, ANY_HIT),
    (control.test_cache_reset, "a-reset-under-load-only-says-so", DEFAULT, ANY_HIT),
    (control.test_aborted_requests, "an-aborted-prefill-is-published", TIGHT, ANY_HIT),
    (surface.test_prompt_logprobs, "scored-prompts-read-the-cache", DEFAULT, (FailureClass.API, *ANY_HIT)),
    (surface.test_several_answers, "answers-write-into-one-block", DEFAULT, ANY_HIT),
    (surface.test_stop_strings, "cached-tokens-count-as-answered", DEFAULT, (FailureClass.API, *ANY_HIT)),
    (surface.test_structured_output, "a-grammar-starts-late-on-a-hit", DEFAULT, (FailureClass.API, *ANY_HIT)),
    (mixed.test_everything_at_once, "hashes-forget-who-asks", TIGHT, ANY_HIT),
]


def requirement_of(test: Any) -> Requirement:
    """What a suite's test stands for."""
    (found,) = [mark.args[0] for mark in test.pytestmark if mark.name == "requirement"]
    assert isinstance(found, Requirement)
    return found


class Bench:
    """One run whose engines are started and broken at will; its cold engine is shared."""

    def __init__(self, folder: Path, *, worker: str = "model", diagnose: str = "none") -> None:
        self.options = Options(
            engine="vllm-inproc",
            report_dir=folder,
            cells=("default", "tight"),
            budget="2h",  # the number of examples is what ends a trial here
            oracle="closed-form" if worker == "fingerprint" else "cold-engine",
            worker=worker,
            diagnose=diagnose,
        )
        self.conductor = Conductor(self.options, ROOT, Role.ALONE)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.conductor.log.subscribe(lambda kind, fields: self.told.append((kind, fields)))
        self.conductor.begin()

    def verdict(self, test: Any, cell: Cell, *, examples: int) -> tuple[Verdict, str, list[Case]]:
        """Put one suite's test to a new engine: the verdict, its reason, and the cases."""
        self.told.clear()
        drawn = settings(
            settings.get_profile("coldproof-smoke"), database=None, derandomize=True, max_examples=examples
        )(given(data=st.data())(test.hypothesis.inner_test))
        lab = self.conductor.open_lab(cell)
        trial = Trial(requirement_of(test), cell.name, "", test.__name__)
        problem: BaseException | None = None
        try:
            self.conductor.what_to_run(lab, trial, drawn)(lab=lab)
        except BudgetSpent:
            pass
        except Exception as failure:  # noqa: BLE001 - it becomes the trial's verdict
            problem = failure
        with contextlib.suppress(pytest.fail.Exception):
            self.conductor.conclude(lab, trial, problem)
        self.conductor.close_lab(lab)
        (said,) = [fields for kind, fields in self.told if kind == "verdict"]
        return said["verdict"], said["reason"], [fields["case"] for kind, fields in self.told if kind == "case"]

    def violation(self, test: Any, cell: Cell, *, examples: int) -> Case:
        """The one case of a test that an engine has to violate, confirmed on a fresh one."""
        verdict, reason, cases = self.verdict(test, cell, examples=examples)
        assert verdict is Verdict.VIOLATED, reason
        (case,) = cases
        assert case.reproduction.fresh_failed, reason
        return case


@contextlib.contextmanager
def opened(folder: Path, worker: str = "model", *, diagnose: str = "none") -> Iterator[Bench]:
    """Short minimising and one replay: that a bug is found is what matters here, not how small."""
    patch = pytest.MonkeyPatch()
    quick = Profile(
        examples=EXAMPLES,
        seconds=120,
        tokens=6_000,
        cells=("default", "tight"),
        shrink_seconds=1,
        replays=3 if diagnose != "none" else 2,
        fingerprint_cells=(),
        fingerprint_examples=EXAMPLES,
        fingerprint_seconds=120,
        controls_seconds=120,
    )
    patch.setitem(PROFILES, "smoke", quick)
    patch.setattr(Session, "has_room", lambda _: False)  # no engine is started ahead of its need
    bench = Bench(folder, worker=worker, diagnose=diagnose)
    yield bench
    bench.conductor.close(interrupted=False)
    patch.undo()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One run for all faults."""
    with opened(tmp_path_factory.mktemp("broken") / "report") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "cell", "classes"),
    [pytest.param(*row, id=f"{requirement_of(row[0]).id}-{row[1]}") for row in BROKEN],
)
def test_a_broken_engine_is_found_out(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    cell: Cell,
    classes: tuple[FailureClass, ...],
) -> None:
    """VIOLATED, confirmed on a fresh engine with the same fault, for a reason that fits it."""
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=EXAMPLES)
    assert case.failure_class in classes, case.sentence


@pytest.mark.parametrize(
    ("test", "cell"),
    [
        pytest.param(chats.test_chats_that_share_a_prelude, DEFAULT, id="CHAT-1"),
        pytest.param(control.test_aborted_requests, TIGHT, id="CTRL-2"),
        pytest.param(mixed.test_everything_at_once, TIGHT, id="MIXED-1"),
    ],
)
def test_the_engine_as_it_is_conforms(bench: Bench, test: Callable[..., None], cell: Cell) -> None:
    """No false alarm where nothing is broken; evidence may be short after so few examples."""
    verdict, reason, cases = bench.verdict(test, cell, examples=3)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    assert cases == []
