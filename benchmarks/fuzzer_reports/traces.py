"""The public traces of GRIEF (arXiv 2605.11202), a greybox fuzzer of vLLM and SGLang, as workloads.

They follow the descriptions in the reports: which requests, how long, in which milliseconds, which are cancelled and
sent again. The recorded traces themselves are not public in full. Lengths are a quarter of the reported ones, so that
they fit into a small model on a CPU; prefixes that a block decides keep their relation to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.adapters.protocol.requests import Abort
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, SetAdapter, Workload

SCALE = 4
BLOCK = 32  # tokens of a block in the cells
VLLM, SGLANG = "https://github.com/vllm-project/vllm/issues", "https://github.com/sgl-project/sglang/issues"


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One report. `cell`: the engine configuration in which the trace is run."""

    name: str
    report: str
    claimed: str
    workload: Workload
    cell: str = "default"


def asked(
    name: str,
    *segments: tuple[str, int],
    at: int = 0,
    tokens: int = 32,
    cancelled: Abort | None = None,
    adapter: str | None = None,
) -> Request:
    """Return a request that begins `at` milliseconds after the burst does. It has a tail of its own."""
    parts = [Segment(shared, length) for shared, length in segments[:-1]]
    prompt = Prompt((*parts, Segment(name, segments[-1][1])))
    return Request(prompt=prompt, offset_ms=at, max_tokens=tokens, abort=cancelled, adapter=adapter)


def own(length: int) -> tuple[str, int]:
    """Return the last segment of a prompt: tokens of its own, of a reported length."""
    return "", max(1, length // SCALE)


def together(*requests: Request) -> Workload:
    """Return a workload that sends the requests in one burst."""
    return Workload((Burst(requests=requests),))


def two_lengths() -> Workload:
    """Two requests of different lengths at the same time."""
    return together(asked("short", own(128)), asked("long", own(256)))


def short_ones_before_a_long_one() -> Workload:
    """Four short requests, one of which is cancelled late, and a long one two seconds later."""
    late = Abort(after_tokens=30)
    short = [asked(f"r{i}", own(512), cancelled=late if i == 1 else None) for i in range(1, 5)]
    return together(*short, asked("r5", own(8192), at=2000))


def many_lengths() -> Workload:
    """Twenty-one requests of two lengths at the same time."""
    return together(*(asked(f"r{i}", own(3000 if i % 2 else 512)) for i in range(21)))


def cancelled_and_retried() -> Workload:
    """Five requests are cancelled while they are answered. Sixty milliseconds later, each is sent again."""
    return together(*retried(range(1, 6), own(512), at=0, gap=60))


def retried(numbers: range, tail: tuple[str, int], *, at: int, gap: int) -> Iterator[Request]:
    """Yield requests that are cancelled after two tokens, and again as a whole `gap` milliseconds later."""
    for i in numbers:
        yield asked(f"r{i}", tail, at=at, cancelled=Abort(after_tokens=2))
        yield asked(f"r{i}", tail, at=at + gap)


def adapters_in_turn() -> Workload:
    """Two long requests with a common prefix, and eleven that change the adapter every eight milliseconds."""
    loads = [SetAdapter(name=name, content=name.upper(), path=f"files-{name}") for name in ("a", "b")]
    prefix = ("prefix", 600 // SCALE)
    anchors = [asked("anchor 1", prefix, own(256)), asked("anchor 2", prefix, own(256), at=4)]
    turns = [asked(f"turn {i}", prefix, own(64), at=8 * i, adapter="ab"[i % 2]) for i in range(11)]
    return Workload((*loads, Burst(requests=(*anchors, *turns))))


def shared_prefix_with_cancels() -> Workload:
    """Requests with a common prefix, cancelled after 15 and 19 milliseconds and sent again, beside unrelated ones."""
    prefix = ("prefix", 4 * BLOCK)
    soon = [asked(f"r{i}", prefix, own(128), at=i, cancelled=Abort(after_ms=after)) for i, after in enumerate((15, 19))]
    again = [asked(f"r{i}", prefix, own(128), at=25 + i) for i in range(2)]
    others = [asked(f"other {i}", own(512), at=10 + 5 * i) for i in range(3)]
    return together(*soon, *again, *others)


def retries_before_a_long_one() -> Workload:
    """One request is cancelled three times and sent again, three others run beside it, and a long one comes later."""
    cancelled = [asked("r1", own(512), at=40 * i, cancelled=Abort(after_ms=20)) for i in range(3)]
    others = [asked(f"r{i}", own(512)) for i in range(2, 5)]
    return together(*cancelled, asked("r1", own(512), at=120), *others, asked("r5", own(8192), at=2000))


def prefix_of_one_block() -> Workload:
    """Requests whose common prefix is exactly a block, beside others without a prefix."""
    shared = [asked(f"shared {i}", ("prefix", BLOCK), own(256), at=5 * i) for i in range(4)]
    return together(*shared, *(asked(f"alone {i}", own(256), at=5 * i) for i in range(4)))


def pressure() -> Workload:
    """Requests with a common prefix that need more blocks than there are, some of them cancelled."""
    prefix = ("prefix", 2 * BLOCK)
    return together(
        *(
            asked(f"r{i}", prefix, own(256), at=3 * i, cancelled=Abort(after_tokens=4) if i % 3 == 0 else None)
            for i in range(12)
        )
    )


TRACES = (
    Trace(
        name="two lengths together",
        report=f"{VLLM}/39589",
        claimed="4 of 50 runs differ",
        workload=two_lengths(),
    ),
    Trace(
        name="short ones before a long one",
        report=f"{VLLM}/39146",
        claimed="3 of 5 requests differ in 10 of 10 runs",
        workload=short_ones_before_a_long_one(),
    ),
    Trace(
        name="21 requests of two lengths",
        report=f"{VLLM}/39146",
        claimed="11 of 21 requests differ in 10 of 10 runs",
        workload=many_lengths(),
    ),
    Trace(
        name="cancelled and retried",
        report=f"{VLLM}/39146",
        claimed="the retries differ in 10 of 10 runs",
        workload=cancelled_and_retried(),
    ),
    Trace(
        name="adapters in turn",
        report=f"{VLLM}/38606",
        claimed="4 requests differ in 7 to 9 of 10 runs",
        workload=adapters_in_turn(),
    ),
    Trace(
        name="pressure on the pool",
        report=f"{VLLM}/37076",
        claimed="a block may be used after it was freed",
        workload=pressure(),
        cell="tight",
    ),
    Trace(
        name="shared prefix with cancels",
        report=f"{SGLANG}/23392",
        claimed="15 of 15 runs differ (SGLang)",
        workload=shared_prefix_with_cancels(),
    ),
    Trace(
        name="retries before a long one",
        report=f"{SGLANG}/24845",
        claimed="answers differ between runs (SGLang)",
        workload=retries_before_a_long_one(),
    ),
    Trace(
        name="prefix of one block",
        report=f"{SGLANG}/22819",
        claimed="10 of 10 runs differ (SGLang)",
        workload=prefix_of_one_block(),
    ),
)
