"""vLLM is started as a user would start it, user options take precedence where allowed, and no start leaves a trace.

The server that starts here is a stub: PYTHONPATH puts a package named vllm before the real one.
"""

from __future__ import annotations

import importlib.machinery
import socket
from pathlib import Path

import msgspec
import psutil
import pytest
from support.paths import ROOT
from support.waiting import until

from coldproof import IMPORT_ROOT
from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import EngineError, EngineStartError
from coldproof.adapters.spec.engine_spec import StartOptions
from coldproof.adapters.vllm import releases, server, spec
from coldproof.adapters.vllm.cells import cell
from coldproof.adapters.vllm.cells.every import CELLS
from coldproof.adapters.vllm.releases import pool_variable
from coldproof.adapters.vllm.server import (
    VllmOptions,
    added_environment,
    check_model,
    effective_environment,
    environment,
    lora_rank,
    numbers_hint,
    server_command,
    spawn,
)

ON, OFF = "--enable-prefix-caching", "--no-enable-prefix-caching"
STUB = """
import os, signal, subprocess, sys, time
from support.fake_server import ServerBehaviour, serving

how, port = os.environ["STUB"], int(sys.argv[sys.argv.index("--port") + 1])
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
signal.signal(signal.SIGTERM, lambda *_: os._exit(worker.wait()))
if how == "crash":
    sys.exit("CUDA out of luck")
print("loading weights", flush=True)
if how != "sleep":
    with serving(ServerBehaviour(models=None) if how == "no model" else None, port=port) as fake:
        while how != "die" or not fake.received("POST /v1/completions"):
            time.sleep(0.01)
        print("EngineCore died", flush=True)
        os._exit(1)
time.sleep(3600)
"""


@pytest.fixture
def options(tmp_path: Path) -> VllmOptions:
    """Return options with an existing model and defaults otherwise."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return VllmOptions(model=str(tmp_path / "model"), log=tmp_path / "engine.log")


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replace vLLM's server by the stub above. The variable STUB selects its behaviour."""
    package = tmp_path / "stub" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'stub'}:{IMPORT_ROOT}:{ROOT / 'tests'}")
    monkeypatch.setattr(server, "FORKING", None)  # a fork would have imported the real one
    return monkeypatch


def command(*arguments: str, caching: bool = True) -> list[str]:
    """Return the server's command line with the user's arguments."""
    options = VllmOptions(model="/m", prefix_caching=caching, arguments=arguments, log=Path("x.log"))
    return server_command(options, 8123)


def effective_flag(words: list[str], *flags: str) -> str:
    """Return the flag that argparse uses: the last one."""
    return [word for word in words if word in flags][-1]


def value(words: list[str], flag: str) -> str:
    """Return the value that argparse uses: the last one."""
    return words[len(words) - words[::-1].index(flag)]


def command_of(process: psutil.Process) -> str:
    """Return a command line, empty where the process has ended (another test may not have waited for its child)."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # also a zombie
        return ""


def assert_nothing_left(processes: list[EngineProcess]) -> None:
    """Check that the one started process has ended, and that this process has no other vLLM descendant."""
    assert len(processes) == 1
    assert not processes[0].running()
    commands = [command_of(process) for process in psutil.Process().children(recursive=True)]
    assert [line for line in commands if "vllm.entrypoints" in line or "sleep(300)" in line] == []


@pytest.mark.parametrize(
    ("configs", "rank"),
    [
        ([], 16),
        (['{"r": 8}', '{"r": 4}'], 16),
        (['{"r": 8}', '{"r": 17}'], 32),
        (['{"r": 64}'], 64),
        (['{"r": 500}'], 256),
        (['{"r": "many"}', "{", '{"r": 33}'], 64),
    ],
)
def test_the_rank_is_the_smallest_one_for_the_adapters(configs: list[str], rank: int, tmp_path: Path) -> None:
    """The rank is one that vLLM supports. Unreadable and missing files do not count."""
    folders = [tmp_path / str(number) for number, _ in enumerate(configs)]
    for folder, config in zip(folders, configs, strict=True):
        folder.mkdir()
        (folder / "adapter_config.json").write_text(config)
    assert lora_rank([*folders, tmp_path / "missing"]) == rank


def test_the_command_can_be_typed_by_a_person() -> None:
    """The command has the model, the address and the served name that requests use."""
    words = command()
    assert words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert (value(words, "--model"), value(words, "--served-model-name")) == ("/m", "base")
    assert (value(words, "--host"), value(words, "--port")) == ("127.0.0.1", "8123")


def test_caching_is_on_for_the_engine_under_test_and_off_for_the_oracle() -> None:
    """The flag is given in both cases, because the default has changed before."""
    assert effective_flag(command(), ON, OFF) == ON
    assert effective_flag(command(caching=False), ON, OFF) == OFF


@pytest.mark.parametrize("theirs", [ON, OFF])
def test_the_users_caching_flag_wins_on_the_engine_under_test(theirs: str) -> None:
    """The user's choice is what is tested."""
    assert effective_flag(command(theirs), ON, OFF) == theirs


def test_the_users_caching_flag_does_not_reach_the_oracle() -> None:
    """An oracle with a cache would not be a cold start."""
    assert effective_flag(command(ON, caching=False), ON, OFF) == OFF


@pytest.mark.parametrize("caching", [True, False])
def test_the_users_other_flags_win_on_both(caching: bool) -> None:
    """The oracle has to be the same build in the same configuration."""
    words = command("--block-size", "64", "--dtype", "bfloat16", caching=caching)
    assert (value(words, "--block-size"), value(words, "--dtype")) == ("64", "bfloat16")


@pytest.mark.parametrize(("cpu", "shares"), [(True, False), (False, True)])
def test_engines_share_a_gpu_but_need_not_share_a_cpu(monkeypatch: pytest.MonkeyPatch, cpu: bool, shares: bool) -> None:
    """The flag has another meaning in the CPU build, and the CPU build's variables have no effect on a GPU."""
    monkeypatch.setattr(server, "is_cpu_build", lambda: cpu)
    assert ("--gpu-memory-utilization" in command()) is shares
    assert ("VLLM_CPU_OMP_THREADS_BIND" in added_environment()) is cpu


@pytest.mark.parametrize(("version", "given"), [("0.31.1", True), ("0.32.0", False), ("0.33.0", False)])
def test_no_variable_overrides_the_size_of_the_pool(version: str, given: bool) -> None:
    """Where the CPU build has a flag for it, the user's flag counts as well."""
    assert ("VLLM_CPU_KVCACHE_SPACE" in pool_variable(version)) is given


@pytest.mark.parametrize(
    ("cpu", "generated", "size"),
    [(False, True, 2**30), (False, False, None), (True, True, 2**28), (True, False, 2**30)],
)
def test_a_generated_model_takes_little_memory(
    options: VllmOptions, monkeypatch: pytest.MonkeyPatch, cpu: bool, generated: bool, size: int | None
) -> None:
    """The pool of a user's model may need the whole share of a GPU. Of a CPU, vLLM would take nine tenths."""
    monkeypatch.setattr(server, "is_cpu_build", lambda: cpu)
    words = server_command(msgspec.structs.replace(options, generated=generated), 1)
    given = int(value(words, "--kv-cache-memory-bytes")) if "--kv-cache-memory-bytes" in words else None
    assert given == size


@pytest.mark.parametrize(("vocabulary", "numbers"), [(512, "bfloat16"), (300_000, "float32")])
def test_the_lora_kernels_of_a_gpu_get_numbers_that_they_take(
    options: VllmOptions, monkeypatch: pytest.MonkeyPatch, vocabulary: int, numbers: str
) -> None:
    """In float32, vLLM 0.26.0 fails an assertion in lora_shrink_op.py. Without adapters, float32 is exact."""
    Path(options.model, "config.json").write_text(f'{{"vocab_size": {vocabulary}}}')
    assert value(server_command(options, 1), "--dtype") == "float32"
    monkeypatch.setattr(server, "is_cuda_build", lambda: True)
    assert value(server_command(options, 1), "--dtype") == numbers
    theirs = msgspec.structs.replace(options, arguments=("--dtype", "float16"))
    assert value(server_command(theirs, 1), "--dtype") == "float16"


@pytest.mark.parametrize("exact", [True, False])
def test_batch_invariant_kernels_are_selected_unless_the_user_sets_others(
    options: VllmOptions, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """On a GPU, bfloat16 is token-exact with Triton's attention and vLLM's batch-invariant mode."""
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    words = server_command(msgspec.structs.replace(options, exact=exact), 1)
    assert ("TRITON_ATTN" in words) is exact
    assert ("VLLM_BATCH_INVARIANT" in environment(exact=exact)) is exact
    assert ("VLLM_BATCH_INVARIANT" in effective_environment(exact=exact)) is exact
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    assert environment(exact=exact)["VLLM_BATCH_INVARIANT"] == "0"
    theirs = ("--attention-backend", "FLASH_ATTN")
    words = server_command(msgspec.structs.replace(options, exact=exact, arguments=theirs), 1)
    assert value(words, "--attention-backend") == "FLASH_ATTN"


@pytest.mark.parametrize(
    ("name", "worker", "cuda", "exact"),
    [
        ("default", "model", True, True),
        ("default", "model", False, False),
        ("default", "fingerprint", True, False),
        ("states", "model", True, False),
    ],
)
def test_only_cells_with_batch_invariant_kernels_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, worker: str, cuda: bool, exact: bool
) -> None:
    """vLLM does not start with Mamba's kernels in batch-invariant mode."""
    monkeypatch.setattr(spec, "is_cuda_build", lambda: cuda)
    (chosen,) = (one for one in CELLS if one.name == name)
    start = StartOptions(
        model="/m",
        adapters=(),
        cell=chosen,
        caching=True,
        arguments=(),
        log=tmp_path / "log",
        on_process=lambda _: None,
        worker=worker,
    )
    assert spec.vllm_options(start, ()).exact is exact


@pytest.mark.parametrize(
    ("given", "hinted"),
    [
        (("--dtype", "float32"), True),
        (("--dtype=float32",), True),
        ((), False),
        (("--dtype", "bfloat16"), False),
        (("--dtype", "float32", "--no-enable-lora"), False),
    ],
)
def test_float32_with_adapters_on_a_gpu_gets_one_clear_line(
    options: VllmOptions, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], hinted: bool
) -> None:
    """vLLM reports only an AssertionError at the end of a log of two hundred lines."""
    monkeypatch.setattr(server, "is_cuda_build", lambda: True)
    said = numbers_hint(server_command(msgspec.structs.replace(options, arguments=given), 1))
    assert ("give --engine-args=--dtype bfloat16" in said) is hinted
    monkeypatch.setattr(server, "is_cuda_build", lambda: False)
    assert numbers_hint(server_command(msgspec.structs.replace(options, arguments=given), 1)) == ""


@pytest.mark.parametrize(
    ("line", "cuda"), [("cuda: Optional[str] = '13.0'", True), ("cuda: Optional[str] = None", False)]
)
def test_the_version_file_of_torch_shows_whether_it_is_for_nvidia_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, cuda: bool
) -> None:
    """The file torch/version.py is read, because an import would take seconds. vLLM's CPU build has a torch for
    CPUs.
    """
    (tmp_path / "version.py").write_text(f"__version__ = '2.11.0'\ndebug = False\n{line}\nhip: Optional[str] = None\n")
    found = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(releases.importlib.util, "find_spec", lambda _: found)
    monkeypatch.setattr(releases, "is_cpu_build", lambda: False)
    assert releases.is_cuda_build() is cuda
    monkeypatch.setattr(releases, "is_cpu_build", lambda: True)
    assert not releases.is_cuda_build()


@pytest.mark.parametrize(
    ("cpu", "worker", "starts"), [(True, "model", False), (False, "model", True), (True, "fingerprint", True)]
)
def test_a_model_runs_in_the_second_runner_on_a_gpu_only(
    monkeypatch: pytest.MonkeyPatch, cpu: bool, worker: str, starts: bool
) -> None:
    """The CPU build has no kernels for the second runner."""
    monkeypatch.setattr(cell, "is_cpu_build", lambda: cpu)
    (runner,) = (one for one in CELLS if one.name == "runner-v2")
    assert (runner.obstacle("vllm", worker) == "") is starts


def test_the_users_variables_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our defaults are set only where the user has set nothing."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    monkeypatch.setenv("ANYTHING_ELSE", "kept")
    given = environment()
    assert (given["HF_HUB_OFFLINE"], given["VLLM_SERVER_DEV_MODE"], given["ANYTHING_ELSE"]) == ("1", "0", "kept")


@pytest.mark.parametrize("model", ["/no/such/folder", "./nothing", "~/nothing", "nothing", "a/b/c", ""])
def test_a_path_without_a_model_is_refused(model: str) -> None:
    """The error comes before the start, and says what is expected."""
    with pytest.raises(EngineStartError, match=f"no model at {model}: --model needs a folder with a config.json"):
        check_model(model)


def test_a_folder_needs_a_config(options: VllmOptions, tmp_path: Path) -> None:
    """A folder needs a config.json; whether a hub name exists is checked by vLLM."""
    with pytest.raises(EngineStartError, match="needs a folder"):
        check_model(str(tmp_path))
    check_model(options.model)
    check_model("facebook/opt-125m")


def test_a_bad_model_starts_nothing(options: VllmOptions) -> None:
    """The model is checked before the process starts."""
    started: list[EngineProcess] = []
    with pytest.raises(EngineStartError):
        spawn(VllmOptions(model="/no/such/folder", log=options.log), on_process=started.append)
    assert started == []


def test_a_busy_port_is_named_and_starts_nothing(options: VllmOptions) -> None:
    """Another server on the port would answer instead of the engine."""
    started: list[EngineProcess] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EngineStartError, match=f"port {port} is in use"):
            spawn(VllmOptions(model=options.model, log=options.log, port=port), on_process=started.append)
    assert started == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("crash", r"terminated with exit code 1 before it was ready(.|\n)*CUDA out of luck"),
        ("sleep", r"not ready after \d+ s(.|\n)*loading weights"),
        ("no model", r"GET /v1/models was answered with HTTP 404 and 'Not Found'; expected a list with a model"),
        ("die", r"has ended.*during the capability probes(.|\n)*EngineCore died"),
    ],
)
def test_a_failed_start_reports_the_reason_and_leaves_no_process(
    options: VllmOptions, stub: pytest.MonkeyPatch, how: str, message: str
) -> None:
    """The error has the end of the engine's log where that explains it."""
    stub.setenv("STUB", how)
    stub.setattr(server, "START_SECONDS", 0.5 if how == "sleep" else 3600.0)
    started: list[EngineProcess] = []

    def begun(process: EngineProcess) -> None:
        started.append(process)
        until(lambda: process.tail() or not process.running())

    with pytest.raises(EngineError, match=message):
        spawn(options, on_process=begun)
    assert_nothing_left(started)


def test_an_interrupted_start_leaves_no_process(options: VllmOptions, stub: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the weights are loading leaves no process."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    stub.setenv("STUB", "sleep")
    stub.setattr(server, "wait_ready", interrupted)
    started: list[EngineProcess] = []
    with pytest.raises(KeyboardInterrupt):
        spawn(options, on_process=started.append)
    assert_nothing_left(started)


def test_a_successful_start_returns_a_managed_engine(options: VllmOptions, stub: pytest.MonkeyPatch) -> None:
    """The engine can be used and stopped, and its command is in the report."""
    stub.setenv("STUB", "serve")
    started: list[EngineProcess] = []
    engine = spawn(options, on_process=started.append)
    try:
        assert engine.capabilities[Capability.SPAWNABLE].present is True
        assert engine.alive()
        assert engine.log_tail() == "loading weights"
        assert engine.config["command"].startswith(
            f"python -m vllm.entrypoints.openai.api_server --model {options.model}"
        )
    finally:
        engine.stop()
    assert not engine.alive()
    assert_nothing_left(started)


@pytest.mark.parametrize(("vocabulary", "takes"), [(None, True), (49_152, True), (258_048, True), (262_144, False)])
def test_a_vocabulary_that_is_too_large_for_adapters(vocabulary: int | None, takes: bool, tmp_path: Path) -> None:
    """vLLM does not start with such a vocabulary and LoRA, for example Gemma 3. A model's folder may have no
    config.json.
    """
    if vocabulary is not None:
        (tmp_path / "config.json").write_text(f'{{"vocab_size": {vocabulary}}}')
    words = server_command(VllmOptions(model=str(tmp_path), log=tmp_path / "log"), 1)
    assert ("--enable-lora" in words) is takes
    assert ("--max-lora-rank" in words) is takes
