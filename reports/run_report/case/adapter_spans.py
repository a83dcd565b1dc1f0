"""Which content each adapter name referred to at which time, and the text of each adapter change."""

from __future__ import annotations

from dataclasses import dataclass

from coldproof.harness.schema.case import Case, ChangeRow


@dataclass(frozen=True, slots=True)
class NameSpan:
    """The content that a name referred to between two times, in seconds since the start of the workload."""

    content: str
    began: float
    ended: float


def name_spans(case: Case, end: float) -> dict[str, list[NameSpan]]:
    """Return the spans by name, in the order of the loads. A refused change is assumed to change nothing."""
    spans: dict[str, list[NameSpan]] = {}
    current: dict[str, tuple[str, float]] = {}
    for change in (one for one in case.changes if one.name and not one.refused):
        if change.name in current:
            content, since = current.pop(change.name)
            spans.setdefault(change.name, []).append(NameSpan(content, since, change.began))
        if change.content:
            spans.setdefault(change.name, [])
            current[change.name] = (change.content, change.ended)
    for name, (content, since) in current.items():
        spans[name].append(NameSpan(content, since, end))
    return spans


def change_texts(case: Case) -> list[tuple[ChangeRow, str]]:
    """Return each change and its line of text, with the content that the name referred to before."""
    current: dict[str, str] = {}
    lines = []
    for change in case.changes:
        text = _change_text(change, current.get(change.name, ""))
        lines.append((change, f"{text} (refused)" if change.refused else text))
        if not change.refused:
            current[change.name] = change.content
    return lines


def _change_text(change: ChangeRow, before: str) -> str:
    if change.kind == "reset":
        return "reset of the prefix cache" + (f", {change.name}" if change.name else "")
    if not change.name:
        return change.kind
    if not change.content:
        return f"{change.kind} {change.name}" + (f", which referred to adapter {before}" if before else "")
    if not before:
        return f"{change.kind} {change.name} as adapter {change.content}"
    return f"{change.kind} {change.name}: adapter {before} → adapter {change.content}"
