"""Records how far the best token of each step lies above the second one, which the engine computes and does not report.

A tolerance for half precision needs these margins: the engine reports the logprob of the chosen token alone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any


class MarginRecorder:
    """The margins of each request's tokens, in nats. With CUDA graphs or asynchronous batches there are none: the code
    that chooses tokens then does not run at each step, or runs ahead of its results."""

    def __init__(self, processor: Any) -> None:
        self.of: dict[str, list[float]] = defaultdict(list)
        self._latest: Any = None
        runner, batches = processor.model_runner, processor.inputs_and_outputs
        if runner.pad_inputs or processor.use_async_batching:
            return
        choose, results = runner._sample, batches.prepare_batch_update

        def sample(scores: Any, output_ids: Any) -> None:
            best = scores[0].topk(2, dim=-1).values
            self._latest = best[:, 0] - best[:, 1]
            choose(scores, output_ids)

        def prepare_batch_update() -> Any:
            batch, *rest = results()
            self.note([one.state.request_id for one in batch if one.has_new_token])
            return (batch, *rest)

        runner._sample, batches.prepare_batch_update = sample, prepare_batch_update

    def note(self, names: list[str]) -> None:
        """Add the margins of a step to the requests that got a token in it, in their order."""
        latest, self._latest = self._latest, None
        if latest is not None:
            for name, margin in zip(names, latest.tolist(), strict=False):
                self.of[name].append(float(margin))

    def get(self, name: str, tokens: int) -> list[float] | list[None]:
        """Return the margins of an answer with so many tokens. A forked request has none: it begins as another one."""
        found = self.of.get(name, [])
        return found[:tokens] if len(found) >= tokens else [None] * tokens

    def forget(self, name: str) -> None:
        """Remove a request that has ended."""
        self.of.pop(name, None)
