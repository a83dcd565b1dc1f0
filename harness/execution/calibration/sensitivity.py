"""Measures whether cold answers depend on each part of a request: otherwise no answer could show a wrong block.

An engine that ignores its prompt, or reads only its length or its last block, gives the same answers with and without a
fault of its cache. So the calibration sends prompts of three blocks that differ in one place of the first two, where a
cache would be wrong, and the same prompts under several adapters.

A trained model may give two prompts that differ in one early token the same short answer. So one pair that differs is
enough for each part, differences of scores count, and after some pairs a whole block is changed in place of one token.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence

import msgspec

from coldproof.harness.execution.calibration.progress import SILENT, Progress
from coldproof.harness.execution.oracles.cross_engine import room
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answer, Question
from coldproof.harness.judgement.sensitivity import Pair, changed_question, depends, other_token
from coldproof.harness.schema.cold_answers import ADAPTER, Sensitivity
from coldproof.harness.workload.steps import Segment
from coldproof.harness.workload.tokens import segment_tokens

TOKENS = 12
OF_TOKENS, OF_BLOCKS = 6, 6  # pairs: first some that differ in one or two tokens, then some in a whole block
Edit = Callable[[tuple[int, ...], int, bool], tuple[int, ...]]  # of a prompt; block size; whether in a whole block


def first(prompt: tuple[int, ...], block: int, whole: bool) -> tuple[int, ...]:
    """Return a prompt with another first token, or another first block."""
    return changed(prompt, range(block if whole else 1))


def middle(prompt: tuple[int, ...], block: int, whole: bool) -> tuple[int, ...]:
    """Return a prompt with another token within its second block, or with another second block."""
    return changed(prompt, range(block, 2 * block) if whole else [block + block // 4])


def last_of_block(prompt: tuple[int, ...], block: int, whole: bool) -> tuple[int, ...]:
    """Return a prompt with another last token of its first block, or another last half of it."""
    return changed(prompt, range(block // 2, block) if whole else [block - 1])


def swapped(prompt: tuple[int, ...], block: int, whole: bool) -> tuple[int, ...]:
    """Return a prompt with two swapped tokens that differ, or two swapped halves of its first block."""
    tokens = list(prompt)
    if whole:
        tokens[:block] = [*tokens[block // 2 : block], *tokens[: block // 2]]
        return tuple(tokens)
    at = next((i for i in range(block // 4, 2 * block - 2) if tokens[i] != tokens[i + 1]), 0)
    tokens[at], tokens[at + 1] = tokens[at + 1], tokens[at]
    return tuple(tokens)


EDITS: dict[str, Edit] = {
    "the first token of the prompt": first,
    "a token in the middle of the prompt": middle,
    "the last token of a block": last_of_block,
    "the order of two tokens": swapped,
}


def changed(prompt: tuple[int, ...], places: Sequence[int]) -> tuple[int, ...]:
    """Return a prompt with other tokens at some places."""
    tokens = list(prompt)
    for place in places:
        tokens[place] = other_token(tokens[place], tokens[place])
    return tuple(tokens)


def measure_sensitivity(
    oracle: EngineOracle,
    identities: Sequence[str | None],
    block: int,
    rule: Rule,
    like: Question | None = None,
    *,
    progress: Progress = SILENT,
) -> tuple[Sensitivity, ...]:
    """Return, for each part of a request, how often an answer changed with it. Raises OracleError.

    `rule`: decides which differences are more than noise. `like`: a question whose other fields are used, for an engine
    that pools.
    """
    like = Question((), None, TOKENS) if like is None else like
    block = min(block, max(2, (room(oracle.engine) - 2 * TOKENS) // 3))
    run = secrets.token_hex(4)
    base: dict[int, tuple[Question, Answer]] = {}

    def asked(number: int) -> tuple[Question, Answer]:
        """Return the prompt of this number and its answer without any adapter."""
        if number not in base:
            prompt = segment_tokens(run, Segment(f"sensitivity {number}", 3 * block - 1))
            question = msgspec.structs.replace(like, prompt=prompt)
            base[number] = question, oracle.ask_without_memo(question)
        return base[number]

    def tested(part: str, edits: Iterator[Callable[[Question], Question]]) -> Sensitivity:
        """Return the result for a part: edited questions are asked until an answer differs."""
        pairs = 0
        for pairs, edit in enumerate(edits, start=1):
            question, answer = asked(pairs)
            if differs(oracle, Pair(question, edit(question)), answer, rule):
                return Sensitivity(part, 1, pairs)
        return Sensitivity(part, 0, pairs)

    most = (OF_TOKENS + OF_BLOCKS) * (len(EDITS) + 1)
    with progress.counting("checking that cold answers depend on their prompts", oracle, of=most):
        found = [tested(part, edits_of(edit, block)) for part, edit in EDITS.items()]
        if adapters := [identity for identity in identities if identity is not None]:
            found.append(tested(ADAPTER, (with_adapter(one) for _ in range(OF_TOKENS) for one in adapters)))
    return tuple(found)


def edits_of(edit: Edit, block: int) -> Iterator[Callable[[Question], Question]]:
    """Yield edits of questions: of tokens first, then of blocks."""
    for number in range(OF_TOKENS + OF_BLOCKS):
        whole = number >= OF_TOKENS
        yield lambda one, whole=whole: msgspec.structs.replace(one, prompt=edit(one.prompt, block, whole))  # type: ignore[misc]


def with_adapter(digest: str) -> Callable[[Question], Question]:
    """Return an edit that asks the same of an adapter."""
    return lambda one: msgspec.structs.replace(one, adapter=digest)


def differs(oracle: EngineOracle, pair: Pair, answer: Answer, rule: Rule) -> bool:
    """Return whether the answers to two questions differ by more than noise. Raises OracleError."""
    asked = changed_question(pair, answer, rule, longest=oracle.engine.shape.max_model_tokens)
    if asked is None:
        return False
    return depends(answer, oracle.ask_without_memo(asked), rule, length=len(pair.asked.prompt))
