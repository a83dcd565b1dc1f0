"""The table of updates of the weights in the summary of a run, as Markdown."""

from __future__ import annotations

from coldproof.harness.schema.results import Results
from coldproof.reports.format.markdown import escaped, table
from coldproof.reports.views import overview
from coldproof.reports.views.weight_updates import PairField, update_matrix


def weight_updates_markdown(results: Results) -> list[str]:
    """Return a table for each layer; nothing for a run without updates."""
    matrix = update_matrix(results)
    if matrix is None:
        return []
    lines = ["### Updates of the weights", ""]
    lines += ["Requests after these calls that share a block with what other weights computed before.", ""]
    for group in matrix.groups:
        heads = (f"Calls ({escaped(group.layer)})" if group.layer else "Calls", *map(escaped, matrix.routes))
        lines += table(heads, ((escaped(row.name), *map(field_text, row.fields)) for row in group.rows))
    return lines


def field_text(field: PairField) -> str:
    """Return a field as text: the verdict and the counts."""
    words = escaped(field.words)
    if field.verdict is None:
        return f"no promise: {words}"
    said = f"{overview.GLYPH[field.verdict]} {field.verdict.value}: {words}"
    return f"**{said}**" if field.wrong else said
