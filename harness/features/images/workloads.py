"""Prompts with images: other images behind the same placeholders, the same ones again, cut by chunks and evicted.

The first choice of every draw is the simplest: one image, sent again, and another one in its place.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.images import Arguments, Encoding
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.workload.generators.identities import (
    PLAIN,
    SALTED,
    TENANT,
    crowds,
    load_tenant,
    request_for,
)
from coldproof.harness.workload.generators.leads import lead
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import (
    Burst,
    Image,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Segment,
    SetAdapter,
    Step,
    Workload,
)
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length

Segments = tuple[Segment, ...]

NAMES = ("cat", "dog", "sun")
PREEMPTED_IMAGES = "requests with images that were preempted"
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
        identities += draw(st.lists(st.sampled_from(SALTED), min_size=1, max_size=2, unique=True))
    if with_adapter and draw(st.booleans()):
        steps.append(load_tenant(limits))
        identities.append(TENANT)
    base = draw(prompts_with_images(limits, uuid="shared" if named else None))
    near = draw(st.lists(other_images(base), min_size=1, max_size=limits.most(3, least=1)))
    sent = [(base, PLAIN), *((one, PLAIN) for one in near), (base, PLAIN), *((base, i) for i in identities[1:])]
    sent += [(one, draw(st.sampled_from(identities))) for one in near[: limits.most(2)]]
    steps += [Burst(requests=(request_for(limits, *one),)) for one in sent]
    steps.append(Burst(requests=(request_for(limits, up_to_a_cut(limits, base), PLAIN, tail="other tail"),)))
    if isinstance(steps[0], SetAdapter):
        other = (Segment("other text", 3 * limits.unit),)
        steps += [Burst(requests=(request_for(limits, *one),)) for one in ((other, identities[-1]), (near[0], PLAIN))]
    steps += draw(crowds(limits, [request_for(limits, *one) for one in sent]))
    return Workload(tuple(steps))


def up_to_a_cut(limits: WorkloadLimits, segments: Segments) -> Segments:
    """Return a prompt up to its last image in which a block ends; the whole prompt if there is none."""
    found, end = segments, NONCE_TOKENS
    for number, segment in enumerate(segments, start=1):
        start, end = end, end + segment.length
        if segment.image and start < end // limits.unit * limits.unit < end:
            found = segments[:number]
    return found


@st.composite
def images_sent_otherwise(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt with images that is sent again with the same pixels in other files, and with other pixels whose
    file differs in its table of colours alone.
    """
    base = draw(prompts_with_images(limits))
    found = [one for one in Encoding if one is not Encoding.TRANSPARENT]  # for which a request needs a field: `holes`
    ways = draw(st.permutations(found))[: limits.most(len(found), least=1)]
    others = [tuple(with_image(one, encoding=way) if one.image else one for one in base) for way in ways]
    changed = [
        tuple(with_image(one, name=f"not {one.image.name}") if one.image else one for one in other)
        for way, other in zip(ways, others, strict=True)
        if way is Encoding.PALETTE
    ]
    sent = [base, *others, *changed, base]
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
def images_with_arguments(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt with images that is sent with other arguments of the processor, and again with each of them.

    Some of them make the same pixels, and some have the same values under other names. At last an image may come for
    the first time, with all of them at once, so that one batch of the encoder has what several of them make of it.
    """
    base = draw(prompts_with_images(limits))
    ways = [Arguments.RESCALED, *draw(st.permutations([one for one in Arguments if one is not Arguments.RESCALED]))]
    ways = ways[: limits.most(len(Arguments), least=2)]
    sent = [(way, PLAIN) for way in (*ways, *draw(st.permutations(ways)))]
    sent += [(way, SALTED[0]) for way in draw(st.permutations(ways))[: limits.most(2)]]
    prompts = [request_for(limits, tuple(told(segment, way) for segment in base), identity) for way, identity in sent]
    alone = [Burst(requests=(one,)) for one in (*prompts, *holes(limits, base))]
    together = [draw(st.lists(st.sampled_from(prompts), max_size=3))]
    if not limits.slow and draw(st.sampled_from((False, True, False))):
        fresh = tuple(with_image(one, name="fresh") if one.image else one for one in base)
        told_so = [tuple(told(segment, way) for segment in fresh) for way in draw(st.permutations(ways))]
        together.append([request_for(limits, one, PLAIN) for one in told_so])
    return Workload((*alone, *(Burst(requests=tuple(burst)) for burst in together if burst)))


def holes(limits: WorkloadLimits, base: Segments) -> list[Request]:
    """Return requests with one file, whose first pixel is transparent, and with one colour behind it and another."""
    first = next(number for number, segment in enumerate(base) if segment.image)
    found = []
    for pixel in (None, 0, None)[: limits.most(3, least=2)]:
        image = with_image(base[first], name="hole", pixel=pixel, encoding=Encoding.TRANSPARENT)
        found.append(request_for(limits, (*base[:first], image, *base[first + 1 :]), PLAIN))
    return found


@st.composite
def images_under_pressure(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw bursts of prompts with images that a small pool cannot hold together, and single ones between them.

    As long as no request with images was preempted, a crowd whose answers fill the pool comes last. Its prompts are
    new: what hit no image keeps its pixels for when it resumes. A prompt from before it has lost blocks after it.
    """
    prompts = draw(st.lists(prompts_with_images(limits), min_size=2, max_size=limits.most(4, least=2)))
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, limits.most(4, least=2)))):
        crowd = draw(st.lists(st.sampled_from(prompts), min_size=1, max_size=5))
        long = draw(st.sampled_from((8, limits.unit + 2)))
        requests = [msgspec.structs.replace(request_for(limits, one, PLAIN), max_tokens=long) for one in crowd]
        steps.append(Burst(requests=tuple(requests)))
    if limits.small_pool is not None and not limits.slow:  # these prompts share many blocks, and evict few
        other = (Segment("other text", min(limits.small_pool, limits.longest) - 4 * limits.unit),)
        steps += [Burst(requests=(request_for(limits, one, PLAIN),)) for one in (other, prompts[0])]
    if draw(lead(limits, (PREEMPTED_IMAGES,))):
        count, lost = draw(st.sampled_from((3, 2))), Burst(requests=(request_for(limits, prompts[1], PLAIN),))
        steps += [lost, filling(limits, fillers(limits, prompts[0], count), count), lost]
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
        steps.append(filling(limits, (*fillers(limits, others, count), again), count))
    steps += [Burst(requests=(request_for(limits, one, PLAIN),)) for one in (first, others)]
    return Workload(tuple(steps))


@st.composite
def images_partly_evicted(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt of images each of which begins in one block and ends in another, and other prompts between, for
    which a small pool evicts its last blocks only.

    Sent again, it hits the blocks before them: up to within an image. Engines evict the end of a prompt first.
    """
    tokens = limits.image_tokens or ASSUMED_TOKENS
    fitting = max(1, (limits.longest - 4 * limits.unit) // (tokens + -tokens % limits.unit))
    most = min(limits.most(5, least=2), fitting)
    count = draw(st.integers(min(2, most), most))
    within = draw(st.sampled_from((tokens // 2, 1, tokens - 1)))
    found = [Segment("text", -(NONCE_TOKENS + within) % limits.unit or limits.unit)]
    for number in range(count):
        image = Image(NAMES[number % len(NAMES)])
        found += [Segment(f"image {number}", tokens, image=image), Segment(f"gap {number}", -tokens % limits.unit)]
    once = request_for(limits, tuple(segment for segment in found if segment.length), PLAIN)
    own = -(-(new_prompt_length(once.prompt) + once.max_tokens) // limits.unit)
    free = max(0, (limits.small_pool or 0) // limits.unit - own)
    steps = [Burst(requests=(once,))]
    for number, evicted in enumerate(
        draw(st.lists(st.integers(2, count + 2), min_size=1, max_size=limits.most(4, least=1)))
    ):
        length = min(limits.longest - 1, (free + evicted) * limits.unit) - NONCE_TOKENS - 1
        other = Request(prompt=Prompt((Segment(f"filler {number}", length),)), max_tokens=1)
        together = draw(st.sampled_from((False, False, True)))
        steps += [Burst(requests=(other, once))] if together else [Burst(requests=(other,)), Burst(requests=(once,))]
    return Workload(tuple(steps))


def fillers(limits: WorkloadLimits, segments: Segments, count: int) -> tuple[Request, ...]:
    """Return requests with other text before these images."""
    return tuple(request_for(limits, (Segment(f"filler {i}", limits.unit), *segments), PLAIN) for i in range(count))


def filling(limits: WorkloadLimits, requests: tuple[Request, ...], count: int) -> Burst:
    """Return a burst of at least `count` requests, of which so many fill a small pool before their answers end."""
    share = max(limits.unit, (limits.small_pool or 0) // count - 2 * limits.unit)
    return Burst(requests=tuple(grown(limits, one, share) for one in requests))


def grown(limits: WorkloadLimits, request: Request, tokens: int) -> Request:
    """Return a request with an answer of `tokens`, or as many as fit behind its prompt."""
    return msgspec.structs.replace(request, max_tokens=min(tokens, limits.longest - new_prompt_length(request.prompt)))


@st.composite
def prompts_with_images(
    draw: st.DrawFn, limits: WorkloadLimits, *, uuid: str | None = None, cut: bool = False
) -> Segments:
    """Draw one to three images with text before, between and behind them, so that they cross block boundaries.

    `cut`: the first image begins in one block and ends within another one.
    """
    tokens = limits.image_tokens or ASSUMED_TOKENS
    fitting = max(1, (limits.longest - 4 * limits.unit) // (2 * tokens))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=min(fitting, limits.most(3, least=1))))
    edge = limits.unit - NONCE_TOKENS
    part = min(tokens, limits.unit)
    across = [(behind - tokens - NONCE_TOKENS) % limits.unit or limits.unit for behind in (part // 2, part - 1, 1)]
    few = across[1:] if limits.slow else []  # few examples: more images over a block's end
    before = draw(st.sampled_from(across if cut else [edge, 1, across[0], 9, *few]))
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


def told(segment: Segment, arguments: Arguments) -> Segment:
    """Return a segment whose image, if it is one, comes with arguments of the processor."""
    return with_image(segment, arguments=arguments) if segment.image else segment
