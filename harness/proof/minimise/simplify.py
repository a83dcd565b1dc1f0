"""Yields variants of a failing workload that are easier to read: sequential requests, shorter prompts and answers.

Pure: the caller runs the variants.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from coldproof.harness.workload.steps import Request, Segment, Workload, first_part
from coldproof.harness.workload.transform import change_requests, one_request_per_burst
from coldproof.harness.workload.validity import is_valid

READABLE = 8  # steps of a workload that a reader can still follow
LEAST_TOKENS = 8  # of an answer: shorter answers may be equal by chance


def simpler(workload: Workload) -> Iterator[Workload]:
    """Yield valid variants: fewer concurrent requests, then shorter prompts, then shorter answers.

    Requests keep their numbers.
    """
    for variants in (less_at_once, shorter_prompts, shorter_answers):
        yield from (variant for variant in variants(workload) if variant != workload and is_valid(variant))


def less_at_once(workload: Workload) -> Iterator[Workload]:
    """Yield variants in which all bursts or one burst are sent one request at a time, if they stay readable."""
    crowds = [at for at, step in enumerate(workload.steps) if len(step.requests) > 1]
    for chosen in dict.fromkeys([tuple(crowds), *((at,) for at in crowds)]):
        apart = one_request_per_burst(workload, chosen)
        if len(apart.steps) <= READABLE:
            yield apart


def shorter_prompts(workload: Workload) -> Iterator[Workload]:
    """Yield variants with a shorter segment, longest first. It is cut in all prompts, so that it stays shared."""
    lengths: dict[str, int] = {}
    for _, _, request in workload.requests():
        for segment in request.prompt.segments:
            lengths[segment.name] = max(segment.length, lengths.get(segment.name, 0))
    for name, length in sorted(lengths.items(), key=lambda named: -named[1]):
        for less in parts_of(length):
            yield change_requests(workload, functools.partial(cut, name=name, less=less))


def cut(request: Request, *, name: str, less: int) -> Request:
    """Return a request with segments called `name` shorter by `less` tokens; shorter segments stay as they are."""

    def shorter(segment: Segment) -> Segment:
        fits = segment.name == name and segment.length > less
        return first_part(segment, segment.length - less) if fits else segment

    segments = tuple(map(shorter, request.prompt.segments))
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(request.prompt, segments=segments))


def shorter_answers(workload: Workload) -> Iterator[Workload]:
    """Yield variants with a lower limit of tokens for all answers, down to LEAST_TOKENS."""
    longest = max(request.max_tokens for _, _, request in workload.requests())
    for less in (part for part in parts_of(longest) if longest - part >= LEAST_TOKENS):
        yield change_requests(workload, functools.partial(at_most, tokens=longest - less))


def at_most(request: Request, *, tokens: int) -> Request:
    """Return a request for at most `tokens` tokens. A request that the client aborts keeps its limit."""
    return request if request.abort else msgspec.structs.replace(request, max_tokens=min(request.max_tokens, tokens))


def parts_of(length: int) -> Iterator[int]:
    """Yield by how much to shorten a length: half, a quarter, an eighth, one."""
    yield from dict.fromkeys(part for part in (length // 2, length // 4, length // 8, 1) if 0 < part < length)
