"""Resolves `if NAME:` in the text of a module, where a case says whether NAME, or an expression, is true."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from coldproof.harness.case.reproducer.modules import first_line, syntax_tree

LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)  # what follows in the block is never run


def resolved(text: str, flags: Mapping[str, bool]) -> str:
    """Return a text in which each `if` statement on a flag is what it runs, or asks only for the rest.

    Where it leaves its block, the rest of the block is left out.
    """
    while edits := list(apart(syntax_tree(text), text.splitlines(), flags)):
        lines = text.splitlines()
        for first, last, instead in sorted(edits, key=lambda edit: edit[0], reverse=True):
            lines[first - 1 : last] = instead
        text = "\n".join(lines) + "\n"
    return text


def apart(tree: ast.Module, lines: list[str], flags: Mapping[str, bool]) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the edits of conditions that do not touch one another: the first and last line, and what stands there
    instead. One for each block, because the last statement of a block must not go.
    """
    taken_lines: set[int] = set()
    blocks: set[int] = set()
    for node, taken in conditions(tree, flags):
        block = block_of(tree, node)
        last, instead = edit(lines, node, taken, block)
        span = range(node.lineno, last + 1)
        if id(block) not in blocks and taken_lines.isdisjoint(span):
            blocks.add(id(block))
            taken_lines.update(span)
            yield node.lineno, last, instead


def edit(lines: list[str], node: ast.If, taken: list[ast.stmt] | str, block: list[ast.stmt]) -> tuple[int, list[str]]:
    """Return the last line of what goes for a condition, and the lines that stay of it. `block`: in which it stands."""
    if isinstance(taken, str):
        return node.lineno, [lines[node.lineno - 1].replace(taken, "", 1)]
    end = block[-1] if taken and isinstance(taken[-1], LEAVING) else node
    kept: list[str] = []
    if taken:
        first, last = first_line(taken[0]), taken[-1].end_lineno or 0
        shift = taken[0].col_offset - node.col_offset
        kept = [line[shift:] if line[:shift].isspace() else line for line in lines[first - 1 : last]]
        kept[0] = kept[0].replace("elif ", "if ", 1) if kept[0].lstrip().startswith("elif ") else kept[0]
    elif len(block) == 1:
        kept = [" " * node.col_offset + "pass"]
    return end.end_lineno or node.lineno, kept


def conditions(tree: ast.AST, flags: Mapping[str, bool]) -> Iterator[tuple[ast.If, list[ast.stmt] | str]]:
    """Yield each `if` statement on a flag, on `not` one, or on one and more, with the statements that it runs, or with
    the words that are left out.
    """
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) if (name := ast.unparse(test)) in flags:
                yield node, node.body if flags[name] else node.orelse
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=test)) if (name := ast.unparse(test)) in flags:
                yield node, node.orelse if flags[name] else node.body
            case ast.If(test=ast.BoolOp(op=ast.And(), values=[ast.Name(id=name), *_])) if name in flags:
                yield node, f"{name} and " if flags[name] else node.orelse
            case _:
                pass


def block_of(tree: ast.AST, node: ast.If) -> list[ast.stmt]:
    """Return the statements of the block in which a statement stands."""
    for one in ast.walk(tree):
        for block in (getattr(one, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and any(same(statement, node) for statement in block):
                return block
    raise LookupError(f"no block has the statement of line {node.lineno}")


def same(one: ast.stmt, other: ast.stmt) -> bool:
    """Return whether two statements stand at the same place of their text."""
    return (one.lineno, one.col_offset, type(one)) == (other.lineno, other.col_offset, type(other))
