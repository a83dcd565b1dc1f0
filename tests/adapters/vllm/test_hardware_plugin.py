"""An out-of-tree platform of a hardware plugin is used in the exact layer, with its configuration changes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import COUNTED, ROOT

from coldproof import IMPORT_ROOT
from coldproof.harness.schema.results import read_results

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def exact_run(folder: Path, **variables: str) -> tuple[dict[str, str], bool]:
    """Return the verdicts of a short run with the profile `hardware`, and whether the platform's scheduler was used."""
    info = folder / "plugin" / "stand_in_platform-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text("[vllm.platform_plugins]\nstand_in = support.stand_in_platform:register\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in-platform\nVersion: 1\n")
    log, report = folder / "scheduled", folder / "report"
    options = ["--profile", "hardware", "--layers", "exact", "--cells", "default", "--requirements", "SALT-1"]
    options += [*COUNTED, "--findings", "off", "--report-dir", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "coldproof", "run", *options],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (IMPORT_ROOT, ROOT / "tests", folder / "plugin"))),
            "STAND_IN_SCHEDULED": str(log),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (report / "results.json").is_file(), done.stdout + done.stderr
    return {one.id: one.verdict for one in read_results(report / "results.json").requirements}, log.exists()


@pytest.mark.nightly
def test_a_platform_plugin_is_loaded_with_its_scheduler(tmp_path: Path) -> None:
    """It is judged as vLLM's own platform is."""
    assert exact_run(tmp_path) == ({"SALT-1": "CONFORMS"}, True)


@pytest.mark.nightly
def test_the_exact_layer_can_leave_the_platform_out(tmp_path: Path) -> None:
    """vLLM's own variable disables the platform, so what only the other run finds comes from the platform."""
    assert exact_run(tmp_path, VLLM_TARGET_DEVICE="cpu") == ({"SALT-1": "CONFORMS"}, False)
