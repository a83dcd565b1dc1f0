"""A start of SGLang's server on a CPU: flags, variables, and what stands in for its kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.sglang_start import options

from coldproof.adapters.sglang import setup
from coldproof.adapters.sglang.cells import CELLS, PROFILES
from coldproof.adapters.sglang.reproducer import SGLANG
from coldproof.adapters.spec.reproduction import RecordedEngine


def value_of(flag: str, words: list[str]) -> str:
    """Return the word behind a flag, which must be there once."""
    assert words.count(flag) == 1
    return words[words.index(flag) + 1]


def test_a_size_of_the_cell_replaces_the_usual_one() -> None:
    words = setup.flags(options(setup.POOL, "1024"), 4000)
    assert value_of(setup.POOL, words) == "1024"
    assert value_of(setup.PAGE, words) == setup.SIZES[setup.PAGE]
    assert value_of("--port", words) == "4000"


def test_the_cold_engine_has_no_cache() -> None:
    assert setup.WITHOUT_CACHE in setup.flags(options(caching=False), 4000)
    assert setup.WITHOUT_CACHE not in setup.flags(options(), 4000)


def test_the_cold_engine_has_no_canary() -> None:
    words = ("--kv-canary", "raise", "--page-size", "1", "--kv-canary-sweep-interval", "4", "--enable-mixed-chunk")
    tested, cold = (setup.flags(options(*words, caching=on), 4000) for on in (True, False))
    assert "".join(words) in "".join(tested)
    assert "canary" not in " ".join(cold)
    assert "--page-size1--enable-mixed-chunk" in "".join(cold)


def test_a_run_without_adapters_starts_a_server_without_them() -> None:
    assert "--enable-lora" in setup.flags(options(), 4000)
    assert "--enable-lora" not in setup.flags(options(adapters=0), 4000)


@pytest.mark.parametrize("caching", [True, False])
def test_an_idle_server_waits(*, caching: bool) -> None:
    """A run has up to four servers, of which most are idle; without the flag, each looks for requests all the time."""
    assert "--sleep-on-idle" in setup.flags(options(caching=caching), 4000)


def test_a_variable_of_a_cell_is_no_flag() -> None:
    wanted = options("SGLANG_TEST_RETRACT=1", "--enable-mixed-chunk")
    words = setup.flags(wanted, 4000)
    assert not any("SGLANG_TEST_RETRACT" in word for word in words)
    assert setup.environment(wanted, {})["SGLANG_TEST_RETRACT"] == "1"
    assert "SGLANG_TEST_RETRACT=1" in setup.printed(wanted, words)


def test_a_variable_of_the_cell_wins_over_the_users() -> None:
    found = setup.environment(options("SGLANG_TEST_RETRACT=1"), {"SGLANG_TEST_RETRACT": "0", "HF_HUB_OFFLINE": "0"})
    assert found["SGLANG_TEST_RETRACT"] == "1"
    assert found["HF_HUB_OFFLINE"] == "0"


def test_the_stand_in_is_used_only_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert str(setup.STAND_INS) in setup.environment(options(), {})["PYTHONPATH"]
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    assert "PYTHONPATH" not in setup.environment(options(), {})


def test_every_cell_of_a_profile_exists() -> None:
    names = {cell.name for cell in CELLS}
    assert all(names.issuperset(cells) for workers in PROFILES.values() for cells in workers.values())


def test_a_report_names_the_command_of_a_started_server() -> None:
    words = setup.printed(options(), setup.flags(options(), 4321))
    engine = RecordedEngine(
        name="sglang", version="0.5.23", config={"command": words}, contents=(), generated_model=True, cell=CELLS[0]
    )
    said = SGLANG.command(engine)
    assert "python -m sglang.launch_server --model-path coldproof-files/model" in said
    assert "--port 8000" in said


def in_a_process(code: str) -> str:
    """Return what code prints in a process with the stand-in on its import path."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(setup.STAND_INS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TestStandIn:
    """The package in place of SGLang's kernels."""

    def test_whatever_is_imported_is_there(self) -> None:
        code = (
            "import sgl_kernel.moe.deep; from sgl_kernel.quant import fp8; from sgl_kernel import silu; print('there')"
        )
        assert in_a_process(code) == "there"

    def test_what_is_called_fails(self) -> None:
        code = "from sgl_kernel import silu\ntry:\n    silu(1)\nexcept TypeError:\n    print('failed')"
        assert in_a_process(code) == "failed"

    def test_memory_need_not_be_pinned(self) -> None:
        code = "import torch, sgl_kernel; print(torch.zeros(2, pin_memory=True).pin_memory().tolist())"
        assert in_a_process(code) == "[0.0, 0.0]"

    def test_a_stream_is_of_a_device_and_waits_for_none(self) -> None:
        code = "import torch, sgl_kernel; s = torch.cpu.Stream(device='cpu'); s.wait_stream(s); print(s.device)"
        assert in_a_process(code) == "cpu"
