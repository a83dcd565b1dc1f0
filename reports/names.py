"""What lay behind each adapter's name from when to when, and each change in words."""

from __future__ import annotations

from dataclasses import dataclass

from reports.schema import Case, ChangeRow


@dataclass(frozen=True, slots=True)
class NameSpan:
    """A content behind a name, seconds from and to."""

    content: str
    began: float
    ended: float


def name_spans(case: Case, end: float) -> dict[str, list[NameSpan]]:
    """By name, in the order of their loads. A change that was refused is taken to have left what was there."""
    spans: dict[str, list[NameSpan]] = {}
    behind: dict[str, tuple[str, float]] = {}
    for change in (one for one in case.changes if one.name and not one.refused):
        if change.name in behind:
            content, since = behind.pop(change.name)
            spans.setdefault(change.name, []).append(NameSpan(content, since, change.began))
        if change.content:
            spans.setdefault(change.name, [])
            behind[change.name] = (change.content, change.ended)
    for name, (content, since) in behind.items():
        spans[name].append(NameSpan(content, since, end))
    return spans


def changes_in_words(case: Case) -> list[str]:
    """One line for each change, with what was behind the name before it."""
    behind: dict[str, str] = {}
    lines = []
    for change in case.changes:
        lines.append(_words(change, behind.get(change.name, "")) + (" (refused)" if change.refused else ""))
        if not change.refused:
            behind[change.name] = change.content
    return lines


def _words(change: ChangeRow, before: str) -> str:
    if change.kind == "reset":
        return "reset of the prefix cache"
    if not change.content:
        return f"{change.kind} {change.name}" + (f", which was adapter {before}" if before else "")
    if not before:
        return f"{change.kind} {change.name} as adapter {change.content}"
    return f"{change.kind} {change.name}: adapter {before} → adapter {change.content}"
