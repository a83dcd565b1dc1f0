"""Scripts of cases about states of the cache that an engine saves and restores."""

from __future__ import annotations

from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.registry import ScriptCase, attempt_with, flag
from coldproof.harness.case.reproducer.steps import step_call
from coldproof.harness.workload.steps import RestoreState, SaveState
from coldproof.harness.workload.tokens import wire_name


class SavingStory(Story):
    """An attempt that saves and restores the cache."""

    def save(self, name: str) -> None:
        """Save the whole cache under a name."""
        self.client.save(wire_name(name, self.nonce))

    def restore(self, name: str) -> None:
        """Replace the whole cache by what was saved under a name."""
        self.client.restore(wire_name(name, self.nonce))


@flag("SAVES")
def saves(about: ScriptCase) -> bool:
    """Return whether the cache is saved or restored."""
    return any(isinstance(change, SaveState | RestoreState) for change in about.changes)


@step_call.register(SaveState)
def save_call(step: SaveState, _loaded: set[str]) -> str:
    """Return a save as a call."""
    return f"story.save({step.name!r})"


@step_call.register(RestoreState)
def restore_call(step: RestoreState, _loaded: set[str]) -> str:
    """Return a restore as a call."""
    return f"story.restore({step.name!r})"


attempt_with("SAVES", SavingStory)
