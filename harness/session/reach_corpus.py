"""Workloads that reached new states of the engine, kept for each requirement in a cell, within a run and between runs.

A workload is added if one of the states that it reached is rare so far. Once a counterexample is found, nothing is
added any more: Hypothesis draws the counterexample again, and must find the same workloads.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

import msgspec

from coldproof.harness.schema.stored_files import read_json
from coldproof.harness.workload.steps import Workload

RARE = 3  # a workload is kept if it reached a state that fewer workloads reached before
MOST_KEPT = 120  # workloads of one requirement in a cell; those with the most frequent states are dropped first
FILE_FORMAT = 1


class KeptWorkload(msgspec.Struct, frozen=True):
    """A workload, and the states that it reached."""

    workload: Workload
    states: tuple[str, ...]


class CorpusFile(msgspec.Struct, frozen=True):
    """The workloads of one requirement in one cell."""

    format: int
    kept: tuple[KeptWorkload, ...]


class ReachCorpus:
    """The workloads of one trial. `counts`: how many examples of the cell reached each state, over all trials."""

    def __init__(self, counts: Counter[str], kept: Iterable[KeptWorkload] = ()) -> None:
        self.counts = counts
        self.kept = list(kept)
        for one in self.kept:
            counts.update(one.states)
        self.frozen = False

    def note(self, workload: Workload, states: Mapping[str, int]) -> None:
        """Count the states that a workload has reached, and keep it if one of them was rare before."""
        if self.frozen:
            return
        rare = any(self.counts[state] < RARE for state in states)
        self.counts.update(states.keys())
        if rare:
            self.kept.append(KeptWorkload(workload, tuple(states)))
        if len(self.kept) > 2 * MOST_KEPT:
            self.kept = self.rarest()

    def rarest(self) -> list[KeptWorkload]:
        """Return the workloads to keep, in the order in which they were added."""
        ranked = sorted(self.kept, key=self.rarity, reverse=True)[:MOST_KEPT]
        chosen = {id(one) for one in ranked}
        return [one for one in self.kept if id(one) in chosen]

    def rarity(self, one: KeptWorkload) -> float:
        """Return a number that is larger the rarer the states of a workload are; its rarest state counts most."""
        return max((1 / self.counts[state] for state in one.states if self.counts[state]), default=1.0)

    def choose(self, random: Random) -> Workload | None:
        """Return a workload, those with rare states more often; None if there is none."""
        if not self.kept:
            return None
        (one,) = random.choices(self.kept, [self.rarity(one) for one in self.kept])
        return one.workload


def read_corpus(path: Path) -> tuple[KeptWorkload, ...]:
    """Return the workloads of a file; none if there is no such file, or it is of another version."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        read = read_json(path, CorpusFile)
        return read.kept if read.format == FILE_FORMAT else ()
    return ()


def write_corpus(path: Path, corpus: ReachCorpus) -> None:
    """Write the workloads of a corpus. A reader never sees half of a file. A folder that cannot be written is ignored:
    the next run then begins without them.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_bytes(msgspec.json.encode(CorpusFile(FILE_FORMAT, tuple(corpus.rarest()))))
        new.replace(path)
