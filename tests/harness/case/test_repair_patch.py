"""A repair is printed as a diff that `patch` can apply to the engine's source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coldproof.adapters.spec.repair import Repair, RepairError, read_repair
from coldproof.harness.case.repair_patch import patch_of

SOURCE = '''\
"""An engine."""


class Pool:
    """Its blocks."""

    @staticmethod
    def key(tokens):
        # what a block is found by
        return hash(tokens)

    def free(self, block):
        self.blocks.append(block)
'''
EDITS = '''\
"""Mend two functions."""
from coldproof.adapters.spec.repair import edit, part
RELEASES = "==1.0"
def install():
    pool = part("PACKAGE.pool", "Pool")
    edit(pool, "key", ("hash(tokens)", "hash((tokens,\\n                 'model'))"))
    edit(pool, "free", ("self.blocks.append(block)", "self.blocks.insert(0, block)"))
'''
WRAPS = '''\
"""Replace a function."""
from coldproof.adapters.spec.repair import part, wrap
RELEASES = "==1.0"
def install():
    @wrap(part("PACKAGE.pool", "Pool"), "free", "self.blocks.append(block)")
    def _(original, self, block): ...
'''
DIFF = """\
--- a/PACKAGE/pool.py
+++ b/PACKAGE/pool.py
@@ -7,7 +7,8 @@
     @staticmethod
     def key(tokens):
         # what a block is found by
-        return hash(tokens)
+        return hash((tokens,
+                     'model'))
_
     def free(self, block):
-        self.blocks.append(block)
+        self.blocks.insert(0, block)
""".replace("_\n", " \n")  # an empty line of context


def repair_of(folder: Path, text: str, package: str, monkeypatch: pytest.MonkeyPatch) -> Repair:
    """Write a package with one module and its repair, and return the repair."""
    code = folder / "site" / package
    code.mkdir(parents=True)
    (code / "__init__.py").touch()
    (code / "pool.py").write_text(SOURCE)
    file = folder / "findings" / "engine" / "a-finding" / "repair.py"
    file.parent.mkdir(parents=True)
    file.write_text(text.replace("PACKAGE", package))
    monkeypatch.setattr(sys, "path", [str(folder / "site"), *sys.path])
    return read_repair(file)


def test_edits_become_a_diff_with_the_engines_indentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the engine around the change is quoted, and nothing else changes."""
    repair = repair_of(tmp_path, EDITS, "patched_engine", monkeypatch)
    assert patch_of(repair) == DIFF.replace("PACKAGE", "patched_engine")


def test_a_folder_without_init_file_is_a_package_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes it for one, and the diff has its path."""
    repair = repair_of(tmp_path, EDITS, "bare_engine", monkeypatch)
    (tmp_path / "site" / "bare_engine" / "__init__.py").unlink()
    assert patch_of(repair) == DIFF.replace("PACKAGE", "bare_engine")


def test_a_repair_from_outside_has_no_diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the function and the file to read."""
    repair = repair_of(tmp_path, WRAPS, "wrapped_engine", monkeypatch)
    with pytest.raises(RepairError, match=r"replaces Pool\.free from outside.*repair\.py"):
        patch_of(repair)
