"""Variants of a failing workload with as much in it, but easier to follow: requests one after the other, shorter
prompts and answers. Pure: whoever asks runs them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from harness.reduction import is_valid
from harness.rewriting import all_changed, taken_apart
from harness.workload import Burst, Request, Segment, Workload

READABLE = 8  # steps that a reader can still follow
TELLING = 8  # tokens of an answer: fewer may be alike by chance


def simpler(workload: Workload) -> Iterator[Workload]:
    """Valid variants: less at once, then shorter prompts, then shorter answers. Requests keep their numbers."""
    for variants in (less_at_once, shorter_prompts, shorter_answers):
        yield from (variant for variant in variants(workload) if variant != workload and is_valid(variant))


def less_at_once(workload: Workload) -> Iterator[Workload]:
    """Bursts taken apart, all of them or one, as long as the story stays readable."""
    crowds = [at for at, step in enumerate(workload.steps) if isinstance(step, Burst) and len(step.requests) > 1]
    for chosen in dict.fromkeys([tuple(crowds), *((at,) for at in crowds)]):
        apart = taken_apart(workload, chosen)
        if len(apart.steps) <= READABLE:
            yield apart


def shorter_prompts(workload: Workload) -> Iterator[Workload]:
    """Each segment shorter wherever its name stands, so that what was shared stays shared; the longest first."""
    lengths: dict[str, int] = {}
    for _, _, request in workload.requests():
        for segment in request.prompt.segments:
            lengths[segment.name] = max(segment.length, lengths.get(segment.name, 0))
    for name, length in sorted(lengths.items(), key=lambda named: -named[1]):
        for less in parts_of(length):
            yield all_changed(workload, functools.partial(cut, name=name, less=less))


def cut(request: Request, *, name: str, less: int) -> Request:
    """A request whose segments of that name are shorter by so many tokens; those that are too short for it stay."""

    def shorter(segment: Segment) -> Segment:
        fits = segment.name == name and segment.length > less
        return msgspec.structs.replace(segment, length=segment.length - less) if fits else segment

    segments = tuple(map(shorter, request.prompt.segments))
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, segments=segments))


def shorter_answers(workload: Workload) -> Iterator[Workload]:
    """No answer longer than so many tokens, and none so short that it tells little."""
    longest = max(request.max_tokens for _, _, request in workload.requests())
    for less in (part for part in parts_of(longest) if longest - part >= TELLING):
        yield all_changed(workload, functools.partial(at_most, tokens=longest - less))


def at_most(request: Request, *, tokens: int) -> Request:
    """A request for no more than so many tokens; one that hangs up in the midst of its answer keeps those it has."""
    return request if request.abort else msgspec.structs.replace(request, max_tokens=min(request.max_tokens, tokens))


def parts_of(length: int) -> Iterator[int]:
    """By how much to shorten: half, a quarter, an eighth, one."""
    yield from dict.fromkeys(part for part in (length // 2, length // 4, length // 8, 1) if 0 < part < length)
