"""Scripts of cases in which files of a tier are lost."""

from __future__ import annotations

import os

from coldproof.adapters.spec.script.given import FILES
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.registry import ScriptCase, attempt_with, flag
from coldproof.harness.case.reproducer.steps import step_call
from coldproof.harness.features.lost_files.steps import LoseFiles


class LosingStory(Story):
    """An attempt in which files of a tier are lost."""

    def lose_files(self, loss: str) -> None:
        """Remove or cut the files of the tier, which the engine of this script keeps beside its model."""
        for file in sorted((FILES / "tier").rglob("*.bin")):
            if loss == "removed":
                file.unlink()
            else:
                os.truncate(file, file.stat().st_size // 2)


@flag("LOSES")
def loses(about: ScriptCase) -> bool:
    """Return whether files of a tier are lost."""
    return any(isinstance(change, LoseFiles) for change in about.changes)


@step_call.register(LoseFiles)
def lose_call(step: LoseFiles, _loaded: set[str]) -> str:
    """Return a loss as a call."""
    return f"story.lose_files({step.loss.value!r})"


attempt_with("LOSES", LosingStory)
