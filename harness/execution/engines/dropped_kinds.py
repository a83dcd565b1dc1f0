"""The kinds of requests that a run has stopped sending, because the engine died of them.

A run that goes on sending such a kind loses an engine each time, and with it the time of the requirements behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.event_log import EventLog
from coldproof.harness.judgement.dropped_kind import DroppedKind
from coldproof.harness.workload.request_kinds import RequestKind, without_kind
from coldproof.harness.workload.steps import Workload


class DroppedKinds:
    """The kinds that this process no longer sends."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._dropped: dict[RequestKind, DroppedKind] = {}

    def __iter__(self) -> Iterator[RequestKind]:
        return iter(self._dropped)

    def __contains__(self, kind: object) -> bool:
        return kind in self._dropped

    def __getitem__(self, kind: RequestKind) -> DroppedKind:
        return self._dropped[kind]

    def add(self, dropped: DroppedKind) -> None:
        """Stop sending a kind, and emit that. A confirmed case replaces what only the calibration saw."""
        before = self._dropped.get(dropped.kind)
        if before is None or (dropped.case and not before.case):
            self._dropped[dropped.kind] = dropped
            self._log.emit("kind_dropped", dropped=dropped)

    def suspected(self, needs: Collection[Capability]) -> list[RequestKind]:
        """Return the kinds of which only the calibration saw a death and that a requirement with these needs is about.

        It goes on sending them, so that there is a case.
        """
        return [kind for kind, one in self._dropped.items() if not one.case and kind.capabilities & set(needs)]

    def forbidding(self, needs: Collection[Capability]) -> list[DroppedKind]:
        """Return the confirmed deaths without whose kind a requirement with these needs cannot be tested at all."""
        found = [one for one in self._dropped.values() if one.case and one.kind.whole]
        return [one for one in found if one.kind.capabilities & set(needs)]

    def without(self, workload: Workload, needs: Collection[Capability]) -> tuple[Workload, list[DroppedKind]]:
        """Return a workload of a requirement without the dropped kinds, and those that it had."""
        had: list[DroppedKind] = []
        sent_by_it = self.suspected(needs)
        for kind, dropped in self._dropped.items():
            without = workload if kind in sent_by_it else without_kind(workload, kind)
            had += [dropped] if without != workload else []
            workload = without
        return workload, had
