"""The declaration of a requirement, which a suite's test carries as a mark, and the parts of its docstring.

A paragraph states what is required of the engine. A paragraph that begins with "Why it can break: " has the reason,
then after "Oracle: " what is compared, then from "Vacuous" on the sentences that say when the test shows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec
import pytest

from coldproof.adapters.protocol.capabilities import OF_ADAPTERS, Capability, Support
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.judgement.counters import Evidence
from coldproof.harness.judgement.evidence.cache import Reuse
from coldproof.harness.schema.results import StatementParts

_RATIONALE = re.compile(r"Why it can break: (.*?)(?: Oracle: (.*?))?(?: (Vacuous .*))?")
# Repositories of public reports, by the short names of `upstream`.
REPOSITORIES = {
    "LMCache": "LMCache/LMCache",
    "TRT": "NVIDIA/TensorRT-LLM",
    "aibrix": "vllm-project/aibrix",
    "ascend": "vllm-project/vllm-ascend",
    "kvcached": "ovg-project/kvcached",
    "llama.cpp": "ggml-org/llama.cpp",
    "llmd-router": "llm-d/llm-d-router",
    "omni": "vllm-project/vllm-omni",
    "sglang": "sgl-project/sglang",
    "vllm": "vllm-project/vllm",
    "vllm-mlx": "waybarrios/vllm-mlx",
}


class Requirement(msgspec.Struct, frozen=True):
    """A requirement: id, short title, needed capabilities (`needs`), and required evidence (`shows`).

    `suits`: the traits of cells with any of which it can be exercised (`CellTrait`, or texts of its own suite).
    `overlapped_too`: it also judges answers of requests that overlap an adapter change.
    `hashes_too`: it also judges published block hashes.
    Both are part of the requirement, so that a replayed case is judged as it was when it was found.
    `expects_hits`: it also judges misses of an engine that others may use, as an attached server: it may have several
    replicas, drop entries after a time, or not keep what decode wrote.
    `upstream`: URLs of public reports about engines that violated it.
    `shows_where`: additional required evidence, for engines with the capability that is its key.
    """

    id: str
    title: str
    needs: tuple[Capability, ...]
    shows: tuple[str, ...]
    overlapped_too: bool = True
    hashes_too: bool = False
    weight: float = 1.0  # relative share of the time budget for examples
    upstream: tuple[str, ...] = ()
    shows_where: dict[Capability, str] = {}
    suits: tuple[str, ...] = (CellTrait.PLAIN,)

    @property
    def without_cache(self) -> bool:
        """Return whether it is about the engine without its cache: disabled, or bypassed by unique salts."""
        return self.id.startswith("GROUND")

    @property
    def expects_hits(self) -> bool:
        """Return whether its statement promises hits: it requires that some were expected."""
        return Reuse.EXPECTED in self.shows

    def on(self, present: Collection[Capability]) -> Requirement:
        """Return the requirement for an engine with these capabilities, with `shows_where` resolved."""
        added = (evidence for capability, evidence in self.shows_where.items() if capability in present)
        return msgspec.structs.replace(self, shows=tuple(dict.fromkeys((*self.shows, *added))), shows_where={})


def requirement(
    requirement_id: str,
    title: str,
    *,
    needs: tuple[Capability, ...] = (),
    suits: tuple[str, ...] = (CellTrait.PLAIN,),
    shows: tuple[Evidence, ...],
    overlapped_too: bool = True,
    hashes_too: bool = False,
    weight: float = 1.0,
    upstream: tuple[str, ...] = (),
    shows_where: Mapping[Capability, Evidence] | None = None,
) -> pytest.MarkDecorator:
    """Mark a test as the check of a requirement. The report shows the test's docstring as the statement.

    `upstream` names public reports, such as "vllm#42125". All tests of a requirement have the same `suits`; a cell with
    any of these traits tests it. Raises ValueError if `shows` is empty, and for an id that is not AREA-NUMBER.
    """
    if not re.fullmatch(r"[A-Z]+-[1-9][0-9]*", requirement_id):
        raise ValueError(f"{requirement_id!r} is no id of a requirement: its area and a number, such as SALT-1")
    if not shows:
        raise ValueError(f"{requirement_id} names no required evidence: it could pass without testing anything")
    declared = Requirement(
        id=requirement_id,
        title=title,
        needs=needs,
        shows=shows,
        overlapped_too=overlapped_too,
        hashes_too=hashes_too,
        weight=weight,
        upstream=tuple(address(report) for report in upstream),
        shows_where=dict(shows_where or {}),
        suits=suits,
    )
    return pytest.mark.requirement(declared)


@dataclass(frozen=True, slots=True)
class Absent:
    """A description of something that a requirement needs and the engine lacks. `capability` is set if it is one."""

    words: str
    capability: Capability | None = None

    def __str__(self) -> str:
        return self.words


def missing(
    capabilities: Mapping[Capability, Support], needs: tuple[Capability, ...], *, contents: int, versions: int
) -> list[Absent]:
    """Return why a requirement cannot be tested: each capability that is absent or unknown, with the evidence.

    Requirements about adapters need at least two adapter contents, `contents` is their number. Requirements about
    updates need another version of the weights, `versions` is their number. A run and `coldproof verify` both decide
    with this function.
    """
    absent: list[Absent] = []
    chosen = capabilities[Capability.ADAPTER_CHOICE].present is True
    if OF_ADAPTERS & set(needs) and chosen and contents < 2:
        absent.append(
            Absent(f"only {contents} usable adapter contents: give at least two that the engine loads with --adapter")
        )
    updates = capabilities[Capability.WEIGHT_UPDATES].present is True
    if Capability.WEIGHT_UPDATES in needs and updates and not versions:
        how = "give the served folder with --model and another checkpoint of it with --weights"
        absent.append(Absent(f"only one version of the weights is known: {how}"))
    for need in (Capability.COLD_ANSWERS, *needs):
        support = capabilities[need]
        if support.present is not True:
            absent.append(Absent(f"{need.value}: {support.evidence}", need))
    return absent


def absent_everywhere(capabilities: Mapping[Capability, Support]) -> dict[Capability, str]:
    """Return the capabilities that an engine lacks however it is started, with the evidence."""
    return {one: support.evidence for one, support in capabilities.items() if support.lacks_everywhere(one)}


def capabilities_of(lacks: list[Absent]) -> list[Capability]:
    """Return the capabilities among the things that an engine lacks."""
    return [one.capability for one in lacks if one.capability is not None]


def missing_everywhere(lacks: Mapping[Capability, str], needs: tuple[Capability, ...]) -> list[Absent]:
    """Return why a requirement cannot be tested in any cell, also in one that was not opened.

    `lacks`: the capabilities that the cells which were opened have shown to be absent from all of them.
    """
    return [Absent(f"{need.value}: {lacks[need]}", need) for need in needs if need in lacks]


def address(report: str) -> str:
    """Return the URL of a report such as "vllm#42125"; GitHub redirects the numbers of pull requests.

    Raises ValueError for any other text.
    """
    found = re.fullmatch(r"([\w.-]+)#([1-9]\d*)", report)
    if found is None or found[1] not in REPOSITORIES:
        raise ValueError(f"{report!r} is not a report of a known repository; use for example vllm#42125")
    return f"https://github.com/{REPOSITORIES[found[1]]}/issues/{found[2]}"


def statement_parts(docstring: str) -> StatementParts:
    """Return the parts of a docstring, each paragraph on one line."""
    parts = StatementParts()
    for paragraph in re.split(r"\n\s*\n", docstring):
        words = " ".join(paragraph.split())
        rationale = _RATIONALE.fullmatch(words)
        if rationale is None:
            parts.required.extend([words] if words else [])
            continue
        reasons = (parts.why_it_can_break, parts.oracle, parts.vacuous)
        for place, part in zip(reasons, rationale.groups(), strict=True):
            place.extend([part] if part else [])
    return parts
