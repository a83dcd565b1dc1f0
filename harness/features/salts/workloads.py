"""Equal prompts with salts that differ, almost equal each other, or are spelled like an adapter's name."""

from __future__ import annotations

import enum

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions
from coldproof.harness.features.options.workloads import SEVERAL_ANSWERS, STOP_STRINGS, STRUCTURED, tokens_for
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.identities import AdapterAndSalt, load_tenant
from coldproof.harness.workload.generators.leads import lead
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER, WorkloadLimits, related_prompts, stems
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Step, Workload

LONGEST_SALT = 128  # characters, with the nonce: the limit of vLLM's server, which refuses longer ones
LONG = "tenant-" + "0123456789" * 10
MANY, MANY_EVERY = 16, 8  # further salts, in one of so many workloads


class Alike(enum.Enum):
    """How two salts are almost equal."""

    CASE = "differs from theirs in case alone"
    SPACES = "differs from theirs in spaces alone"
    FORM = "is written like theirs in another form of Unicode"
    LONGER = "is theirs and more characters, or less"
    EIGHT = "begins with the same eight characters"
    HUNDRED = "begins with the same hundred characters"

    @property
    def chance(self) -> str:
        """Return the name of the evidence about such salts."""
        return f"requests that could have hit KV of a salt that {self.value}"


# Salts that a wrong key may confuse, by how they are almost equal.
ALMOST_EQUAL: tuple[tuple[Alike, str | None, str | None], ...] = (
    (Alike.LONGER, "red", "red2"),
    (Alike.LONGER, "red", "red+2"),
    (Alike.CASE, "red", "Red"),
    (Alike.SPACES, "red", " red"),
    (Alike.LONGER, "red", "red-tenant"),
    (Alike.EIGHT, "tenants-of-house-1", "tenants-of-house-2"),
    (Alike.FORM, "red", "\N{FULLWIDTH LATIN SMALL LETTER R}ed"),
    (Alike.FORM, "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}"),
    (Alike.HUNDRED, f"{LONG}-1", f"{LONG}-2"),
)
NEARLY_EQUAL: tuple[tuple[str | None, str | None], ...] = ((None, "red"), *((a, b) for _, a, b in ALMOST_EQUAL))
LIKE_A_NAME = "requests that could have hit KV of an adapter with the name of their salt, or the other way round"
OTHERS = (None, "red", "Red", "red2", "re", "tenant", "files-A")
# An adapter, and a salt that equals its name (vllm#44701); salt and adapter, and a salt that equals both joined.
LIKE_AN_ADAPTER: tuple[tuple[AdapterAndSalt, AdapterAndSalt], ...] = (
    (("tenant", None), (None, "tenant")),
    (("tenant", "red"), (None, "red+tenant")),
)


@guided
@st.composite
def salted(draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool, several: bool = False) -> Workload:
    """Draw the same prompts with two to eleven salts and adapters, one by one and in bursts, each sent again.

    Salts that are almost equal in a way that the trial has not shown yet come first, then one that equals an adapter's
    name. Rarely, 16 further salts follow. With `several`, some single requests ask for several answers.
    """
    steps: list[Step] = []
    names = [alike.chance for alike in Alike] + ([LIKE_A_NAME] if with_adapter else [])
    missing = draw(lead(limits, names))
    # Several pairs: Hypothesis repeats its draws, so that one pair in a workload leaves most of them untried.
    pairs = draw(st.lists(st.sampled_from(NEARLY_EQUAL), min_size=1, max_size=limits.most(3, least=1), unique=True))
    pairs = [(one, other) for alike, one, other in ALMOST_EQUAL if alike.chance == missing][:1] or pairs
    identities: list[AdapterAndSalt] = [(None, salt) for salt in dict.fromkeys(salt for pair in pairs for salt in pair)]
    without = missing != LIKE_A_NAME and draw(st.booleans())  # false is drawn first: few find this by luck
    if with_adapter and not without:
        steps.append(load_tenant(limits))
        count = draw(st.sampled_from(limits.sizes((1, 2))))
        identities += [identity for pair in LIKE_AN_ADAPTER[:count] for identity in pair]
    more = draw(st.lists(st.sampled_from(OTHERS), max_size=1))
    identities += [(None, salt) for salt in more if (None, salt) not in identities]
    stem = draw(stems(limits))
    kinds = available_options(limits, several=several)
    whole = Prompt((stem,))
    order = draw(st.permutations(identities))
    salted_first = identities[::-1] if limits.slow else identities  # a slow model may get one repeat, which is to hit
    # In a small pool only what was sent last can still be hit.
    latest = [one for one in order if one[1] is not None][-1:] if limits.small_pool is not None else salted_first
    for adapter, salt in [*order, draw(st.sampled_from(latest))]:
        plain = not kinds or draw(st.sampled_from((True, True, False)))
        kind = PLAIN if plain else draw(st.one_of(kinds))
        request = Request(prompt=whole, adapter=adapter, salt=salt, options=kind, max_tokens=tokens_for(kind))
        steps.append(Burst(requests=(request,)))
    if not limits.slow and draw(st.sampled_from((*[False] * (MANY_EVERY - 1), True))):
        short = Prompt((Segment("short", limits.unit + 5),))
        further = [Request(prompt=short, salt=f"{LONG}-{number}", max_tokens=2) for number in range(MANY)]
        steps += [Burst(requests=(request,)) for request in (*further, further[0], further[-1])]
    for _ in range(draw(st.integers(0, limits.most(3)))):
        model = draw(st.sampled_from(identities))[0]
        beside = [identity for identity in identities if identity[0] == model or limits.may_mix(BASE_WITH_ADAPTER)]
        requests = []
        for _ in range(draw(st.sampled_from((1, 2, 3)))):
            adapter, salt = draw(st.sampled_from(beside))
            prompt = draw(related_prompts(limits, stem, None))
            requests.append(Request(prompt=prompt, adapter=adapter, salt=salt))
        steps.append(Burst(requests=tuple(requests)))
    return Workload(tuple(steps))


def available_options(limits: WorkloadLimits, *, several: bool) -> list[st.SearchStrategy[ResponseOptions]]:
    """Return the kinds of response options that requests may have: code for other kinds of requests may drop a salt."""
    needs = [(Capability.STOP_STRINGS, STOP_STRINGS), (Capability.STRUCTURED_OUTPUT, STRUCTURED)]
    needs += [(Capability.SEVERAL_ANSWERS, SEVERAL_ANSWERS)] if several else []
    return [kind for capability, kind in needs if capability in limits.can]
