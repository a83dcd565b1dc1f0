"""A workload as an editable list of steps, in which requests keep their references when others are added or moved."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from coldproof.harness.workload.steps import Burst, Request, Step, Workload, renumbered


class EditedRequest(msgspec.Struct):
    """A request with a key of its own. `after`: the key of the request that it continues."""

    key: int
    request: Request
    after: int | None


class EditedStep(msgspec.Struct):
    """A step; of a burst, `requests` replace the burst's own."""

    step: Step
    requests: list[EditedRequest] = []


class Draft:
    """The steps of a workload while they are edited."""

    def __init__(self, workload: Workload) -> None:
        self.keys = itertools.count(sum(1 for _ in workload.requests()))
        self.steps: list[EditedStep] = []
        number = 0
        for step in workload.steps:
            edited = [EditedRequest(number + i, r, r.prompt.continues) for i, r in enumerate(step.requests)]
            self.steps.append(EditedStep(step, edited))
            number += len(edited)

    def workload(self) -> Workload | None:
        """Return the workload; None if a request continues one that is not before it."""
        numbers: dict[int, int] = {}
        steps: list[Step] = []
        for edited in self.steps:
            if not isinstance(edited.step, Burst):
                steps.append(edited.step)
                continue
            unknown = {one.after for one in edited.requests} - numbers.keys() - {None}
            if not edited.requests or unknown:
                return None
            requests = tuple(with_reference(one, numbers) for one in edited.requests)
            steps.append(msgspec.structs.replace(edited.step, requests=requests))
            for one in edited.requests:
                numbers[one.key] = len(numbers)
        return Workload(tuple(steps))

    def bursts(self) -> list[EditedStep]:
        """Return the bursts."""
        return [edited for edited in self.steps if isinstance(edited.step, Burst)]

    def requests(self) -> list[EditedRequest]:
        """Return all requests."""
        return [one for edited in self.steps for one in edited.requests]

    def continued(self) -> set[int]:
        """Return the keys of requests that others continue."""
        return {one.after for one in self.requests() if one.after is not None}

    def copy_requests(self, requests: Iterable[EditedRequest]) -> list[EditedRequest]:
        """Return copies with keys of their own. A copy that continues one of these continues its copy."""
        given = list(requests)
        keys = {one.key: next(self.keys) for one in given}
        return [
            EditedRequest(keys[one.key], one.request, None if one.after is None else keys.get(one.after, one.after))
            for one in given
        ]

    def copy_steps(self, steps: Sequence[EditedStep]) -> list[EditedStep]:
        """Return copies of successive steps."""
        copied = iter(self.copy_requests(one for edited in steps for one in edited.requests))
        return [EditedStep(edited.step, list(itertools.islice(copied, len(edited.requests)))) for edited in steps]


def with_reference(one: EditedRequest, numbers: dict[int, int]) -> Request:
    """Return a request that continues the right one."""
    if one.after is None:
        return one.request
    prompt = msgspec.structs.replace(one.request.prompt, continues=one.after)
    return renumbered(msgspec.structs.replace(one.request, prompt=prompt), numbers)
