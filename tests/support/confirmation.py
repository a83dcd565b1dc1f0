"""Judgements and a scripted observer, for tests of confirmation."""

from __future__ import annotations

from collections import Counter
from typing import cast

from support.histories import history, outcome, tokens

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.oracle import Answer, question
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

COLD = tokens(1, 2, 3)
WRONG = Finding(
    checker="tokens",
    failure_class=FailureClass.CORRUPT,
    sentence="Request 0 differs from the cold answer at token 0.",
    request=0,
    position=0,
)


FRESH, CONTROL, ATTACHED = (cast(CheckedEngine, name) for name in ("fresh", "control", "attached"))


def judgement(nonce: str, *, failed: bool, answers: int = 1, cached: int = 0) -> Judgement:
    """Return the judgement of one run of one request under a nonce. `cached`: the number of its cached tokens."""
    answer = (9, 9, 9) if failed else (1, 2, 3)
    options = ResponseOptions(answers=answers)
    seen = history(outcome(0, range(40), answer, options=options, cached_tokens=cached), nonce=nonce)
    sent = question(seen.outcomes[0], seen.outcomes[0].identities[0])
    return Judgement(
        history=seen, answers={sent: Answer(COLD)}, findings=(WRONG,) if failed else (), noise=(), evidence=Counter()
    )


class ScriptedObserver:
    """An observer without an engine: a run fails under the given nonces, and the engine terminates after `dies_after`
    runs.
    """

    def __init__(self, *, dies_after: int = 100, **fails: set[str | None]) -> None:
        self.fails, self.dies_after = fails, dies_after
        self.seen: list[tuple[str, str | None]] = []

    def __call__(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        name = str(engine)
        if len(self.seen) == self.dies_after:
            raise EngineDied("gone")
        self.seen.append((name, nonce))
        return judgement(nonce or "new", failed=nonce in self.fails.get(name, set()))
