"""Prompts with images: other images behind the same placeholders, the same ones again, cut by chunks and evicted.

The first choice of every draw is the simplest: one image, sent again, and another one in its place.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.images import Encoding
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import (
    Burst,
    Image,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
)
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length

AdapterAndSalt = tuple[str | None, str | None]
Segments = tuple[Segment, ...]

PLAIN: AdapterAndSalt = (None, None)
SALTS: tuple[AdapterAndSalt, ...] = ((None, "red"), (None, "Red"))
NAMES = ("cat", "dog", "sun")
ASSUMED_TOKENS = 16  # of an image, if the engine takes none: nothing is sent then


@st.composite
def near_images(draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool, named: bool = False) -> Workload:
    """Draw a prompt with images, near-collisions of it, each sent again; with salts, an adapter, and bursts of them.
    Other text behind the same images lets a hit end within one. Another prompt for the adapter comes right before an
    image for the base model, so that what is left of the adapter would change it.

    `named`: the client gives the same name to different images.
    """
    steps: list[Step] = []
    identities = [PLAIN]
    if Capability.CACHE_SALT in limits.can:
        identities += draw(st.lists(st.sampled_from(SALTS), min_size=1, max_size=2, unique=True))
    if with_adapter and draw(st.booleans()):
        steps.append(SetAdapter(name="tenant", content=limits.contents[0], path="files-A", route=Route.LOAD))
        identities.append(("tenant", None))
    base = draw(prompts_with_images(limits, uuid="shared" if named else None))
    near = draw(st.lists(other_images(base), min_size=1, max_size=limits.most(3, least=1)))
    sent = [(base, PLAIN), *((one, PLAIN) for one in near), (base, PLAIN), *((base, i) for i in identities[1:])]
    sent += [(one, draw(st.sampled_from(identities))) for one in near[: limits.most(2)]]
    steps += [Burst(requests=(request_for(limits, *one),)) for one in sent]
    steps.append(Burst(requests=(request_for(limits, base, PLAIN, tail="other tail"),)))
    if isinstance(steps[0], SetAdapter):
        other = (Segment("other text", 3 * limits.unit),)
        steps += [Burst(requests=(request_for(limits, *one),)) for one in ((other, identities[-1]), (near[0], PLAIN))]
    for _ in range(draw(st.integers(0, limits.most(2)))):
        crowd = [request_for(limits, *draw(st.sampled_from(sent))) for _ in range(draw(st.sampled_from((2, 3))))]
        if len({request.adapter for request in crowd}) == 1 or limits.may_mix(BASE_WITH_ADAPTER):
            steps.append(Burst(requests=tuple(crowd)))
    return Workload(tuple(steps))


@st.composite
def images_sent_otherwise(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt with images that is sent again with the same pixels in other files."""
    base = draw(prompts_with_images(limits))
    ways = draw(st.permutations(list(Encoding)))[: limits.most(len(Encoding), least=1)]
    sent = [base, *(tuple(sent_as(segment, way) for segment in base) for way in ways), base]
    return Workload(tuple(Burst(requests=(request_for(limits, one, PLAIN),)) for one in sent))


@st.composite
def images_at_the_end(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts that end with an image, sent again, alone and beside others, and with text behind it."""
    base = draw(prompts_with_images(limits))
    if not base[-1].image:
        base = base[:-1]
    other = (*base[:-1], with_image(base[-1], name=f"not {image_of(base[-1]).name}"))
    sent = [Request(prompt=Prompt(one)) for one in (base, base, other, base)]
    steps: list[Step] = [
        Burst(requests=(one,)) for one in sent[: draw(st.integers(2, limits.most(len(sent), least=2)))]
    ]
    if limits.slow:
        return Workload(tuple(steps))
    steps.append(Burst(requests=(request_for(limits, base, PLAIN),)))
    if draw(st.booleans()):
        steps.append(Burst(requests=(request_for(limits, (Segment("beside", limits.unit),), PLAIN), sent[0])))
    return Workload(tuple(steps))


@st.composite
def images_under_pressure(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw bursts of prompts with images that a small pool cannot hold together, and single ones between them."""
    prompts = draw(st.lists(prompts_with_images(limits), min_size=2, max_size=limits.most(4, least=2)))
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, limits.most(4, least=2)))):
        crowd = draw(st.lists(st.sampled_from(prompts), min_size=1, max_size=5))
        long = draw(st.sampled_from((8, limits.unit + 2)))
        requests = [msgspec.structs.replace(request_for(limits, one, PLAIN), max_tokens=long) for one in crowd]
        steps.append(Burst(requests=tuple(requests)))
    return Workload(tuple(steps))


@st.composite
def images_of_resumed_requests(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a request that hits all its images, loses them while it decodes, and must compute them again.

    Other images come between, so that a small encoder cache no longer has the first ones.
    """
    first, other = draw(prompts_with_images(limits)), draw(prompts_with_images(limits))
    others = tuple(with_image(one, name=f"not {image_of(one).name}") if one.image else one for one in other)
    steps: list[Step] = [Burst(requests=(request_for(limits, one, PLAIN),)) for one in (first, others)]
    again = request_for(limits, first, PLAIN)
    resets = Capability.RESET_RUNNING in limits.can and draw(st.booleans())
    if resets:
        change = Meanwhile(change=Reset((ResetScope.RUNNING,)), after_tokens=draw(st.sampled_from((1, 4))))
        steps.append(Burst(requests=(msgspec.structs.replace(again, max_tokens=limits.unit),), meanwhile=change))
    else:
        count = draw(st.sampled_from((2, 3)))
        share = max(limits.unit, (limits.small_pool or 0) // count - 2 * limits.unit)
        crowd = [request_for(limits, (Segment(f"filler {i}", limits.unit), *others), PLAIN) for i in range(count)]
        steps.append(Burst(requests=tuple(grown(limits, one, share) for one in (*crowd, again))))
    steps += [Burst(requests=(request_for(limits, one, PLAIN),)) for one in (first, others)]
    return Workload(tuple(steps))


def grown(limits: WorkloadLimits, request: Request, tokens: int) -> Request:
    """Return a request with an answer of `tokens`, or as many as fit behind its prompt."""
    return msgspec.structs.replace(request, max_tokens=min(tokens, limits.longest - new_prompt_length(request.prompt)))


def request_for(limits: WorkloadLimits, segments: Segments, identity: AdapterAndSalt, *, tail: str = "tail") -> Request:
    """Return a request with segments, and more tokens after them: the last block of a prompt is never looked up."""
    adapter, salt = identity
    return Request(prompt=Prompt((*segments, Segment(tail, limits.unit + 1))), adapter=adapter, salt=salt)


@st.composite
def prompts_with_images(draw: st.DrawFn, limits: WorkloadLimits, uuid: str | None = None) -> Segments:
    """Draw one to three images with text before, between and behind them, so that they cross block boundaries."""
    tokens = limits.image_tokens or ASSUMED_TOKENS
    fitting = max(1, (limits.longest - 4 * limits.unit) // (2 * tokens))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=min(fitting, limits.most(3, least=1))))
    before = draw(st.sampled_from((limits.unit - NONCE_TOKENS, 1, limits.unit - NONCE_TOKENS - tokens // 2, 9)))
    found: list[Segment] = [Segment("text", max(1, before))]
    for number, name in enumerate(names):
        found.append(Segment(f"image {number}", tokens, image=Image(name, uuid=uuid if number == 0 else None)))
        gap = draw(st.sampled_from((0, 3, tokens - 1)))
        found += [Segment(f"gap {number}", gap)] if gap else []
    return tuple(found)


@st.composite
def other_images(draw: st.DrawFn, segments: Segments) -> Segments:
    """Draw the same prompt with another image, one other pixel, two images in another order, or one image twice."""
    places = [i for i, segment in enumerate(segments) if segment.image]
    place = draw(st.sampled_from(places))
    changed = list(segments)
    match draw(st.sampled_from(("other", "pixel", "swap", "repeat"))):
        case "pixel":
            changed[place] = with_image(segments[place], pixel=draw(st.sampled_from((0, 1, 100))))
        case "swap" if len(places) > 1:
            first, then = places[0], places[1]
            changed[first], changed[then] = (
                with_image(segments[first], name=image_of(segments[then]).name),
                with_image(segments[then], name=image_of(segments[first]).name),
            )
        case "repeat" if len(places) > 1:
            changed[places[1]] = with_image(segments[places[1]], name=image_of(segments[places[0]]).name)
        case _:
            changed[place] = with_image(segments[place], name=f"not {image_of(segments[place]).name}")
    return tuple(changed)


def image_of(segment: Segment) -> Image:
    """Return the image of a segment that is one."""
    assert segment.image
    return segment.image


def with_image(segment: Segment, **changes: object) -> Segment:
    """Return a segment with its image changed."""
    return msgspec.structs.replace(segment, image=msgspec.structs.replace(image_of(segment), **changes))


def sent_as(segment: Segment, encoding: Encoding) -> Segment:
    """Return a segment whose image, if it is one, is sent in another way."""
    return with_image(segment, encoding=encoding) if segment.image else segment
