"""Workloads with rare states are kept, chosen more often, and used by the next run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from support.histories import ask, burst

from coldproof.harness.session.reach_corpus import (
    MOST_KEPT,
    RARE,
    KeptWorkload,
    ReachCorpus,
    read_corpus,
    write_corpus,
)
from coldproof.harness.workload.steps import Workload


def workload(number: int) -> Workload:
    """Return the workload with this number."""
    return Workload((burst(ask((f"stem {number}", 40))),))


def test_a_workload_with_a_rare_state_is_kept() -> None:
    """How often a workload met the state does not matter. A state that many workloads met is not rare."""
    corpus = ReachCorpus(Counter())
    for number in range(RARE + 2):
        corpus.note(workload(number), {"a": 9})
    assert [one.workload for one in corpus.kept] == [workload(number) for number in range(RARE)]
    corpus.note(workload(99), {"a": 1, "b": 1})
    assert corpus.kept[-1].workload == workload(99)


def test_states_are_counted_over_all_trials_of_a_cell() -> None:
    """What another requirement meets all the time is not new."""
    counts = Counter({"a": RARE})
    corpus = ReachCorpus(counts)
    corpus.note(workload(0), {"a": 1})
    assert corpus.kept == []
    assert counts["a"] == RARE + 1


def test_after_a_failure_nothing_is_added() -> None:
    """The same numbers must choose the same workloads again."""
    corpus = ReachCorpus(Counter(), [KeptWorkload(workload(0), ("a",)), KeptWorkload(workload(1), ("b",))])
    corpus.frozen = True
    before = [corpus.choose(Random(seed)) for seed in range(20)]
    corpus.note(workload(2), {"new": 1})
    assert [corpus.choose(Random(seed)) for seed in range(20)] == before


def test_rare_states_are_chosen_more_often() -> None:
    """An empty corpus chooses nothing."""
    counts = Counter({"often": 99, "seldom": 0})
    corpus = ReachCorpus(counts, [KeptWorkload(workload(0), ("often",)), KeptWorkload(workload(1), ("seldom",))])
    chosen = Counter(corpus.choose(Random(seed)) for seed in range(300))
    assert chosen[workload(1)] > 10 * chosen[workload(0)] > 0 or workload(0) not in chosen
    assert ReachCorpus(Counter()).choose(Random(1)) is None


def test_a_corpus_stays_small_and_keeps_what_is_rare() -> None:
    """A run of hours meets many states a second time."""
    corpus = ReachCorpus(Counter())
    corpus.note(workload(0), {"only once": 1})
    for number in range(1, 5 * MOST_KEPT):
        corpus.note(workload(number), {f"state {number // 2}": 1})
    assert len(corpus.kept) <= 2 * MOST_KEPT
    assert workload(0) in [one.workload for one in corpus.rarest()]


def test_the_next_run_finds_them(tmp_path: Path) -> None:
    """An unreadable file or one of another version is ignored."""
    path = tmp_path / "cell" / "REUSE-1.json"
    assert read_corpus(path) == ()
    corpus = ReachCorpus(Counter())
    corpus.note(workload(0), {"a": 1})
    write_corpus(path, corpus)
    assert read_corpus(path) == (KeptWorkload(workload(0), ("a",)),)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":0'))
    assert read_corpus(path) == ()
    path.write_text("{")
    assert read_corpus(path) == ()
    write_corpus(tmp_path / "cell" / "REUSE-1.json" / "below a file.json", corpus)
