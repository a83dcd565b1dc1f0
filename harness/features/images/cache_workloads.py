"""Prompts with images whose encoder outputs and processed pixels are cached as well, and what those caches must notice:
resets of one cache alone, new weights, and adapters that change the vision tower.

The text around an image changes, so that the prefix cache has nothing or a part of it, and the other caches have it.
"""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.images.workloads import Segments, prompts_with_images
from coldproof.harness.features.weights.workloads import Invalidation, UpdateBuilder, pause_modes
from coldproof.harness.workload.generators.identities import PLAIN, SALTED, AdapterAndSalt, request_for
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import (
    Burst,
    Pause,
    Prompt,
    Reset,
    Resume,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
)

ENCODER = Reset((ResetScope.ENCODER,), prefix=False)
PROCESSOR = Reset((ResetScope.PROCESSOR,), prefix=False)
BOTH = Reset((ResetScope.ENCODER, ResetScope.PROCESSOR), prefix=False)
ALL = Reset((ResetScope.ENCODER, ResetScope.PROCESSOR))
RESETS = (ENCODER, PROCESSOR, Reset(), BOTH, ALL)


def behind_other_text(segments: Segments, number: int) -> Segments:
    """Return a prompt with the same images behind other text of the same length."""
    first, *rest = segments
    return (Segment(f"text {number}", first.length), *rest) if number else segments


def before_other_text(segments: Segments, number: int) -> Segments:
    """Return a prompt with other text between its images."""
    first, *rest = segments
    return (first, *(s if s.image else Segment(f"{s.name}, {number}", s.length) for s in rest))


def send(limits: WorkloadLimits, segments: Segments, identity: AdapterAndSalt = PLAIN) -> Burst:
    """Return a burst of one request."""
    return Burst(requests=(request_for(limits, segments, identity),))


@st.composite
def image_cache_resets(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts with the same images, and resets of one cache alone, of two, and of all between them.

    A pause that clears is for all of them as well. A prompt with other text behind its image can hit a part of the
    image, and needs the encoder's output for the rest.
    """
    base = draw(prompts_with_images(limits, cut=draw(st.sampled_from((True, True, False)))))
    alone = [(reset,) for reset in RESETS[:3]]
    # A second tier may be none that can be cleared, so that an engine refuses such a pause.
    modes = pause_modes(limits) if Capability.SECOND_TIER not in limits.can else ()
    pauses = [(Pause(mode=mode, clear=True), Resume()) for mode in modes]
    ways: list[tuple[Step, ...]] = [*alone, *([draw(st.sampled_from(pauses))] if pauses else [])]
    more: list[tuple[Step, ...]] = [*((reset,) for reset in RESETS), *pauses]
    resets = [*draw(st.permutations(ways)), *draw(st.lists(st.sampled_from(more), max_size=limits.most(3)))]
    identities = (PLAIN, PLAIN, SALTED[0])
    steps: list[Step] = [send(limits, base)]
    for number, reset in enumerate(resets, start=1):
        steps += reset
        after = [before_other_text(base, number), behind_other_text(base, number), base]
        for segments in draw(st.permutations(after))[: draw(st.sampled_from((2, 1, 3)))]:
            tail = "tail" if segments is base else f"tail {number}"
            request = request_for(limits, segments, draw(st.sampled_from(identities)), tail=tail)
            steps.append(Burst(requests=(request,)))
    return Workload(tuple(steps))


class ImageUpdates(UpdateBuilder):
    """Updates of the weights between requests with the same images. What must be reset includes the encoder's cache."""

    def __init__(self, draw: st.DrawFn, limits: WorkloadLimits) -> None:
        super().__init__(draw, limits)
        self.segments = draw(prompts_with_images(limits))

    def repeat(self, adapter: str | None = None) -> None:
        """Send the images again, behind the same text or other text."""
        segments = behind_other_text(self.segments, self.draw(st.sampled_from((0, self.updates + 1))))
        self.send(Prompt((*segments, Segment("tail", self.limits.unit + 1))), adapter=adapter)

    def invalidate(self, by: Invalidation) -> None:
        """Add what follows an update: resets of both caches in either order, perhaps with requests between them."""
        match by:
            case Invalidation.RESET:
                between: list[Step] = []
                if self.draw(st.booleans()):
                    self.repeat()
                    between = [self.steps.pop()]
                ways: tuple[list[Step], ...] = (
                    [Reset((ResetScope.ENCODER,))],
                    [ENCODER, *between, Reset()],
                    [Reset(), ENCODER],
                    [Reset(), *between, ENCODER, Reset()],
                )
                self.steps += self.draw(st.sampled_from(ways))
            case Invalidation.SALT:
                self.steps.append(ENCODER)
                self.renew_salt()
            case _:
                super().invalidate(by)


@st.composite
def images_over_updates(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw two or three updates of the weights while nothing runs, with the same images before and after each."""
    builder = ImageUpdates(draw, limits)
    builder.repeat()
    for _ in range(draw(st.sampled_from((2, 3)))):
        builder.quiet_update()
        builder.repeat()
        builder.repeat()
    return Workload(tuple(builder.steps))


@st.composite
def images_of_several_towers(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw the same images for two adapters and for the base model, one after the other and together."""
    base = draw(prompts_with_images(limits))
    identities: list[AdapterAndSalt] = [("tenant", None), ("other", None), PLAIN]
    steps: list[Step] = [
        SetAdapter(name=str(name), content=content, path=f"files-{content}")
        for (name, _), content in zip(identities, limits.contents[:2], strict=False)
    ]
    loaded = [one for one in identities if one[0] in {None, *(s.name for s in steps if isinstance(s, SetAdapter))}]
    for number in range(draw(st.sampled_from((1, 2)))):
        for identity in draw(st.permutations(loaded)):
            steps.append(send(limits, behind_other_text(base, number), identity))
    together = [request_for(limits, behind_other_text(base, 9), identity) for identity in loaded]
    if all(limits.may_run_beside(one.adapter, together[0].adapter) for one in together[1:]):
        steps.append(Burst(requests=tuple(together)))
    return Workload(tuple(steps))


@st.composite
def images_over_reloads(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw reloads of an adapter under its name, from another path, with the same images before and after each.

    The prefix cache is reset with some of them: what it keeps over a reload is LORA-3's matter.
    """
    base = draw(prompts_with_images(limits))
    routes = [Route.UNLOAD_LOAD, *([Route.IN_PLACE] if Capability.LORA_IN_PLACE in limits.can else [])]
    contents = limits.contents[:2]
    steps: list[Step] = [SetAdapter(name="tenant", content=contents[0], path="files-0")]
    steps.append(send(limits, base, ("tenant", None)))
    for number in range(1, draw(st.sampled_from((2, 3)))):
        content = contents[number % len(contents)]
        route = draw(st.sampled_from(routes))
        steps.append(SetAdapter(name="tenant", content=content, path=f"files-{number}", route=route))
        steps += [Reset()] if draw(st.booleans()) else []
        steps.append(send(limits, behind_other_text(base, draw(st.sampled_from((0, number)))), ("tenant", None)))
        steps += [send(limits, base, PLAIN)] if draw(st.booleans()) else []
    return Workload(tuple(steps))
