"""Workloads in which an adapter is switched on for everybody, and others choose theirs request by request."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.base import Capability
from harness.generators.adapters import Life, Stage
from harness.generators.prompts import Grounds
from harness.workload import Burst, Prompt, Request, Route, SetAdapter, Unload, Workload

EVERYBODY, CHOSEN = "everybody", "tenant"


@st.composite
def switches(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """On, over to another content, off, in any order; after each the same prompt is asked, under what is on now, under
    one that the request chooses, or of the base model. Nobody asks while it is switched.
    """
    stage = Stage(draw, grounds, Life())
    chooses = Capability.ADAPTER_CHOICE in grounds.can and draw(st.booleans())
    if chooses:
        content = draw(st.sampled_from(grounds.contents))
        stage.steps.append(SetAdapter(name=CHOSEN, content=content, path=f"files-{content}", route=Route.LOAD))
    on: str | None = None
    for _ in range(draw(st.integers(2, 5))):
        on = draw(st.sampled_from([state for state in (*grounds.contents, None) if state != on]))
        if on is None:
            stage.steps.append(Unload(EVERYBODY))
        else:
            stage.steps.append(SetAdapter(name=EVERYBODY, content=on, path=f"files-{on}", route=Route.SWITCH))
        models = [EVERYBODY if on is not None else None, None, *([CHOSEN] if chooses else [])]
        for model in models[: 1 + draw(st.integers(0, len(models) - 1))]:
            tokens = draw(st.sampled_from((8, 1, grounds.unit)))
            asked = Request(prompt=Prompt((stage.stem,)), adapter=model, max_tokens=tokens)
            stage.steps.append(Burst(requests=(stage.talk.add(asked),)))
    return Workload(tuple(stage.steps))
