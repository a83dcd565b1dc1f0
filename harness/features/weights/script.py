"""Scripts of cases about updates of the weights, pauses and sleep."""

from __future__ import annotations

from coldproof.adapters.common.wake_route import WAKE_TAGS
from coldproof.adapters.protocol.weights import WeightRoute
from coldproof.harness.case.reproducer.registry import ScriptCase, flag
from coldproof.harness.case.reproducer.steps import step_call
from coldproof.harness.workload.kinds.weights import Pause, Resume, Sleep, UpdateWeights, Wake


@flag("UPDATES")
def has_updates(about: ScriptCase) -> bool:
    """Return whether the weights are updated."""
    return any(isinstance(change, UpdateWeights) for change in about.changes)


@flag("PAUSES")
def has_pauses(about: ScriptCase) -> bool:
    """Return whether generation is paused, or the engine sleeps."""
    return any(isinstance(change, Pause | Resume | Sleep | Wake) for change in about.changes)


@step_call.register(UpdateWeights)
def update_call(step: UpdateWeights, _loaded: set[str]) -> str:
    """Return an update of the weights as a call."""
    same = ", same_path=True" if step.route is WeightRoute.SAME_PATH else ""
    return f"story.client.update_weights({step.version!r}{same})"


@step_call.register(Pause)
def pause_call(step: Pause, _loaded: set[str]) -> str:
    """Return a pause as a call."""
    return f"story.client.pause({step.mode.value!r}, clear={step.clear!r})"


@step_call.register(Resume)
def resume_call(_: Resume, _loaded: set[str]) -> str:
    """Return the end of a pause as a call."""
    return "story.client.resume()"


@step_call.register(Sleep)
def sleep_call(step: Sleep, _loaded: set[str]) -> str:
    """Return a sleep as a call."""
    return f"story.client.sleep({step.level})"


@step_call.register(Wake)
def wake_call(step: Wake, _loaded: set[str]) -> str:
    """Return the end of a sleep, or of a part of it, as a call."""
    part = step.part
    return f"story.client.wake({WAKE_TAGS[part]!r})" if part in WAKE_TAGS else "story.client.wake()"
