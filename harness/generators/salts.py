"""Workloads of equal prompts under salts that are unequal, nearly equal, or spelled like an adapter's name."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.base import PLAIN, Capability, Surface
from harness.generators.prompts import BASE_WITH_ADAPTER, Grounds, Talk, related_prompts, stems
from harness.generators.surfaces import SEVERAL_ANSWERS, STOP_STRINGS, STRUCTURED, tokens_for
from harness.workload import Burst, Prompt, Request, Route, SetAdapter, Step, Workload

Whom = tuple[str | None, str | None]  # an adapter and a salt

# Salts that a key may take for one another: none at all; one that begins with the other; case; blanks; what follows a
# separator; what follows eight and sixteen characters; and characters that Unicode has in two forms.
NEARLY_EQUAL: tuple[tuple[str | None, str | None], ...] = (
    (None, "red"),
    ("red", "red2"),
    ("red", "Red"),
    ("red", " red"),
    ("red", "red-tenant"),
    ("tenants-of-house-1", "tenants-of-house-2"),
    ("red", "\N{FULLWIDTH LATIN SMALL LETTER R}ed"),
    ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}"),
)
OTHERS = (None, "red", "Red", "red2", "re", "tenant", "files-A")
# An adapter beside a salt that equals its name (vllm#44701), and salt and adapter beside a salt that equals both.
LIKE_AN_ADAPTER: tuple[tuple[Whom, Whom], ...] = (
    (("tenant", None), (None, "tenant")),
    (("tenant", "red"), (None, "red+tenant")),
)


@st.composite
def salted(draw: st.DrawFn, grounds: Grounds, *, with_adapter: bool, several: bool = False) -> Workload:
    """The same prompts under two to eleven salts and adapters, one by one and in bursts, each asked again.

    `several`: some requests, alone, are for several answers.
    """
    steps: list[Step] = []
    # Several pairs: hypothesis comes back to what it drew, and one pair a workload leaves most of them untried.
    pairs = draw(st.lists(st.sampled_from(NEARLY_EQUAL), min_size=1, max_size=3, unique=True))
    asked: list[Whom] = [(None, salt) for salt in dict.fromkeys(salt for pair in pairs for salt in pair)]
    if with_adapter and draw(st.booleans()):
        steps.append(SetAdapter(name="tenant", content=grounds.contents[0], path="files-A", route=Route.LOAD))
        asked += [whom for pair in LIKE_AN_ADAPTER[: draw(st.sampled_from((1, 2)))] for whom in pair]
    more = draw(st.lists(st.sampled_from(OTHERS), max_size=1))
    asked += [(None, salt) for salt in more if (None, salt) not in asked]
    stem, talk = draw(stems(grounds)), Talk()
    kinds = surfaces_of(grounds, several=several)
    whole = Prompt((stem,))
    for adapter, salt in [*draw(st.permutations(asked)), draw(st.sampled_from(asked))]:
        plain = not kinds or draw(st.sampled_from((True, True, False)))
        kind = PLAIN if plain else draw(st.one_of(kinds))
        request = Request(prompt=whole, adapter=adapter, salt=salt, surface=kind, max_tokens=tokens_for(kind))
        steps.append(Burst(requests=(talk.add(request),)))
    for _ in range(draw(st.integers(0, 3))):
        model = draw(st.sampled_from(asked))[0]
        beside = asked if grounds.may_mix(BASE_WITH_ADAPTER) else [whom for whom in asked if whom[0] == model]
        requests = []
        for _ in range(draw(st.sampled_from((1, 2, 3)))):
            adapter, salt = draw(st.sampled_from(beside))
            prompt = draw(related_prompts(grounds, stem, None))
            requests.append(talk.add(Request(prompt=prompt, adapter=adapter, salt=salt)))
        steps.append(Burst(requests=tuple(requests)))
    return Workload(tuple(steps))


def surfaces_of(grounds: Grounds, *, several: bool) -> list[st.SearchStrategy[Surface]]:
    """What else a request may ask for here: entry points that other kinds of requests take may drop a salt."""
    needs = [(Capability.STOP_STRINGS, STOP_STRINGS), (Capability.STRUCTURED_OUTPUT, STRUCTURED)]
    needs += [(Capability.SEVERAL_ANSWERS, SEVERAL_ANSWERS)] if several else []
    return [kind for capability, kind in needs if capability in grounds.can]
