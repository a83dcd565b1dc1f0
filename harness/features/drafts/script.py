"""Scripts of cases about accepted drafts."""

from __future__ import annotations

from coldproof.adapters.spec.script.client import Client, Sent
from coldproof.harness.case.reproducer.kit.story import Story
from coldproof.harness.case.reproducer.registry import Call, ScriptCase, attempt_with, flag, script_check
from coldproof.harness.features.drafts.circumstances import FEWER_DRAFTS


class CountingStory(Story):
    """An attempt that counts the drafts of each request that is sent alone: the engine counts for all together."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.drafts: dict[int, list[float]] = {}

    def ask(self, *specs: Sent) -> None:
        """Send requests together, and wait for their answers."""
        before = self.client.draft_counts()
        super().ask(*specs)
        if len(specs) == 1:
            counted = zip(self.client.draft_counts(), before, strict=True)
            self.drafts[self.first] = [now - then for now, then in counted]


@flag("DRAFTS", method="draft_counts", alone=True)
def is_about_drafts(about: ScriptCase) -> bool:
    """Return whether a case is about accepted drafts."""
    return about.case.signature.endswith(FEWER_DRAFTS)


@script_check(200, flag="DRAFTS")
def by_drafts(about: ScriptCase) -> Call | None:
    """Return the check of a case about accepted drafts."""
    return Call(has_fewer_drafts, (about.case.failing_request,))


def has_fewer_drafts(story: CountingStory, number: int) -> bool:
    """Return whether fewer drafts were accepted for a request than for the same prompt and answer without a hit."""
    for n, (drafted, accepted) in story.drafts.items():
        cached, total = story.replies[n].cached or 0, len(story.sent[n]["ids"])
        print(f"request {n}: {cached} of {total} tokens cached; {accepted:.0f} of {drafted:.0f} drafts accepted")
    ids, answer = story.sent[number]["ids"], story.replies[number].ids
    cold = [n for n in story.drafts if story.sent[n]["ids"] == ids and not story.replies[n].cached]
    equal = [story.drafts[n][1] for n in cold if story.replies[n].ids == answer]
    return bool(equal) and story.drafts[number][1] < min(equal)


attempt_with("DRAFTS", CountingStory)
