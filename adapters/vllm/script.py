"""vLLM in the process of a script, which steps it where requests run together."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm import LLM, SamplingParams
from vllm.config import KVEventsConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

from coldproof.adapters.common.image_model import write_processor
from coldproof.adapters.protocol.embedding_rows import has_rows
from coldproof.adapters.protocol.images import has_images, is_image
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import (
    ABORTS,
    ADAPTED,
    CONTENT,
    CRASHES,
    ENVIRONMENT,
    EVENTS,
    EXTRA,
    FILES,
    GENERATED,
    HANGS,
    IMAGES,
    LATE,
    LIMITED,
    LMCACHE,
    MEANWHILE,
    MODEL,
    REMADE,
    ROWS,
    SCOPES,
    SESSIONS,
    SETTINGS,
    SEVERAL,
    START_SEED,
    TIERED,
    WEIGHTS,
)
from coldproof.adapters.spec.script.torch_files import write_lora, write_model, write_tokenizer
from coldproof.adapters.vllm.inproc.process import replace_kernels
from coldproof.adapters.vllm.inproc.request import embeds_prompt, image_prompt

STEP_MS = 10  # one step in the engine's time
STALLED_STEPS = 2000  # without an output: some engines wait for ever


class InProcess:
    """vLLM, and the adapters that are loaded."""

    def __init__(self) -> None:
        os.environ.update(ENVIRONMENT)
        if GENERATED:
            write_files(FILES / "model", START_SEED)
        self.start()
        self.numbers = itertools.count(1)
        if ADAPTED:
            self.loras: dict[str | None, Any] = {}
        if SESSIONS:
            self.sessions: dict[str, Any] = {}  # the latest input of each
        if CRASHES:
            self.crash: Exception | None = None

    def start(self, **changes: Any) -> None:
        """Start the engine."""
        if LMCACHE:
            replace_kernels()
        if EVENTS:
            changes["kv_events_config"] = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        self.llm: Any = LLM(**{**SETTINGS, **changes})
        self.engine: Any = self.llm.llm_engine
        if EVENTS:
            self.events: list[Any] = []
            publisher = SimpleNamespace(publish=lambda batch: self.events.extend(batch.events), shutdown=lambda: None)
            self.engine.engine_core.engine_core.scheduler.kv_event_publisher = publisher

    def load(self, name: str, content: str, folder: str, *, in_place: bool = False) -> None:
        """Load an adapter, or replace it."""
        write_lora(content, FILES / folder)
        number = self.loras[name].lora_int_id if name in self.loras else next(self.numbers)
        self.loras[name] = LoRARequest(name, number, str(FILES / folder), load_inplace=in_place)
        self.engine.add_lora(self.loras[name])

    def unload(self, name: str) -> None:
        """Forget an adapter's name, as vLLM's server does."""
        del self.loras[name]

    def reset(self, *scope: str, prefix: bool = True) -> None:
        """Empty the prefix cache, and the caches in `scope`."""
        if not SCOPES:
            print("reset:", self.llm.reset_prefix_cache())
        else:
            if prefix:
                done = self.llm.reset_prefix_cache(
                    reset_running_requests="running requests" in scope, reset_connector="the second tier" in scope
                )
                print("reset:", done)
            if "the multimodal processor's cache" in scope:
                self.engine.reset_mm_cache()
            if "the encoder cache" in scope:
                self.engine.reset_encoder_cache()

    def together(self, sent: list[Sent]) -> list[list[Event]]:
        """Serve requests together, and return their answers."""
        prompts, options = [self.prompt(one) for one in sent], [self.sampling(one) for one in sent]
        if ADAPTED:
            loras = [self.loras.get(one["name"]) for one in sent]
            outputs = self.llm.generate(prompts, options, lora_request=loras, use_tqdm=False)
        else:
            outputs = self.llm.generate(prompts, options, use_tqdm=False)
        return [parts(output) for output in outputs]

    def serve(self, sent: list[Sent], take: Callable[[int, Event], bool], between: Callable[[], object] = int) -> None:
        """Serve requests until all have ended. Time is counted in steps."""
        if HANGS:
            quiet = 0
        if LATE:
            waiting, running = dict(enumerate(sent)), dict[str, int]()
        else:
            running = {self.send(one): place for place, one in enumerate(sent)}
        for steps in itertools.count():
            if LATE:
                for place in [place for place, one in waiting.items() if one.get("offset_ms", 0) <= steps * STEP_MS]:
                    running[self.send(waiting.pop(place))] = place
            if MEANWHILE:
                between()
            if not running:
                if LATE and waiting:
                    continue
                return
            outputs = self.stepped()
            if CRASHES and self.crash is not None:
                return
            if HANGS:
                quiet = 0 if outputs else quiet + 1
                if quiet > STALLED_STEPS:
                    for place in running.values():
                        take(place, {"failed": f"no output in {STALLED_STEPS} steps"})
                    return
            for output in outputs:
                wanted = all(take(running[output.request_id], part) for part in parts(output))
                if ABORTS and not wanted:
                    self.engine.abort_request([output.request_id])
                    del running[output.request_id]
                elif output.finished or any(one.finish_reason for one in output.outputs):  # at least of a turn
                    del running[output.request_id]

    def stepped(self) -> list[Any]:
        """Execute one step, and return its outputs."""
        if not CRASHES:
            return list(self.engine.step())
        try:
            return list(self.engine.step())
        except Exception as problem:  # noqa: BLE001 - this is what a crash of the engine is
            self.crash = problem
            return []

    def ended(self) -> bool:
        """Return whether a step has failed."""
        print(f"the last step: {self.crash!r}")
        return self.crash is not None

    def send(self, sent: Sent) -> str:
        """Add a request to the engine, and return its name there."""
        if SESSIONS and "session" in sent:
            return self.send_turn(sent)
        name, parameters = str(next(self.numbers)), self.sampling(sent)
        parameters.output_kind = RequestOutputKind.DELTA
        if ADAPTED:
            self.engine.add_request(name, self.prompt(sent), parameters, lora_request=self.loras.get(sent["name"]))
        else:
            self.engine.add_request(name, self.prompt(sent), parameters)
        return name

    def prompt(self, sent: Sent) -> dict[str, Any]:
        """Return a prompt in the engine's form."""
        prompt: dict[str, Any] = {"prompt_token_ids": sent["ids"]}
        if CONTENT:
            content: Any = SimpleNamespace(prompt=tuple(sent["ids"]), hidden=tuple(sent["hidden"]))
        if ROWS and has_rows(sent["ids"]):
            model = self.engine.model_config
            prompt = embeds_prompt(content, model.dtype, model.get_inputs_embeds_size())
        if IMAGES and has_images(sent["ids"]):
            config = self.engine.model_config.hf_config
            shape: Any = SimpleNamespace(side=config.vision_config.image_size)
            prompt = image_prompt(content, config.image_token_id, shape)
        return prompt | ({"cache_salt": sent["salt"]} if sent.get("salt") else {})

    def sampling(self, sent: Sent) -> Any:
        """Return the parameters of a request."""
        if EXTRA:
            usual = {"temperature": 0, "seed": 0, "max_tokens": sent["tokens"], "ignore_eos": True}
            extra = dict(sent.get("extra", {}))
            if LIMITED and "kv_transfer_params" in extra:
                extra["extra_args"] = {"kv_transfer_params": extra.pop("kv_transfer_params")}
            return SamplingParams(**{**usual, **extra})
        return SamplingParams(temperature=0, seed=0, max_tokens=sent["tokens"], ignore_eos=True)

    def cold(self, sent: Sent) -> list[Event]:
        """Send a request alone, with a salt, and an adapter's name and folder, that were not used before."""
        new = f"cold-{secrets.token_hex(4)}"
        if TIERED:  # its keys may have no salt
            self.start_again(kv_transfer_config=None, enable_prefix_caching=False)
        if ADAPTED and sent["content"] is not None:
            self.load(new, sent["content"], new)
        alone = {**sent, "name": new, "salt": new}
        if IMAGES:
            alone["hidden"] = without_names(sent["ids"], sent["hidden"])
        if SESSIONS:
            for session in list(self.sessions):  # `generate` waits until none is open
                self.close_session(session, aborted=True)
        (answer,) = self.together([alone])
        if TIERED:
            self.start_again()
        return answer

    def update_weights(self, version: str, *, same_path: bool = False) -> None:
        """Load other weights: generated ones, or a checkpoint that was put into the folder."""
        folder = FILES / f"weights-{'of-this-path' if same_path else version}"
        if GENERATED:
            write_files(folder, WEIGHTS[version])
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})

    def restart(self, _before: str) -> None:
        """Replace the engine by one over the same storage."""
        if REMADE:
            write_files(FILES / "model", 0)
        self.start_again()

    def start_again(self, **changes: Any) -> None:
        """Replace the engine by one with changed settings. Its adapters are gone."""
        self.engine.engine_core.shutdown()
        self.llm = self.engine = None
        gc.collect()
        if ADAPTED:
            self.loras.clear()
        self.start(**changes)

    def send_turn(self, sent: Sent) -> str:
        """Send a turn of a session, as `AsyncLLM.generate` does with a stream of inputs: only its new tokens."""
        known, engine = self.sessions.get(sent["session"]), self.engine
        lora = None
        if ADAPTED:
            lora = self.loras.get(sent["name"])
        held = len(sent["ids"]) - sent["new"] if known else 0
        new = {**sent, "ids": sent["ids"][held:]}
        if CONTENT:
            new["hidden"] = sent["hidden"][held:]
        parameters = self.sampling(sent)
        parameters.output_kind = RequestOutputKind.DELTA
        turn = engine.input_processor.process_inputs(
            request_id=known.request_id if known else str(next(self.numbers)),
            prompt=engine.renderer.render_cmpl([self.prompt(new)])[0],
            params=parameters,
            supported_tasks=engine.get_supported_tasks(),
            lora_request=lora,
            resumable=True,
        )
        if known:
            turn.external_req_id = known.external_req_id
        else:
            engine.input_processor.assign_request_id(turn)
        self.sessions[sent["session"]] = turn
        self.hand_over(turn)
        return str(turn.external_req_id)

    def close_session(self, name: str, *, aborted: bool) -> None:
        """End a session: by an input that is not resumable, or by a disconnect."""
        turn = self.sessions.pop(name)
        if aborted:
            self.engine.abort_request([turn.request_id], internal=True)
        else:
            turn.resumable = False
            self.hand_over(turn)

    def hand_over(self, turn: Any) -> None:
        """Hand an input to the parts of the engine, each with its own list of tokens, to which it appends."""
        self.engine.output_processor.add_request(turn, None, None, 0)
        core = copy.copy(turn)
        core.prompt_token_ids = list(turn.prompt_token_ids)
        self.engine.engine_core.add_request(core)


def write_files(folder: Path, seed: int) -> None:
    """Write the model and what else the engine reads from its folder."""
    write_model(folder, seed)
    if IMAGES:
        write_tokenizer(folder)
        write_processor(folder, MODEL["image_token_id"])


def without_names(ids: list[int], hidden: list[int]) -> list[int]:
    """Return what a prompt carries without the names of its images, which are keys of caches too."""
    return [0 if is_image(one) else under for one, under in zip(ids, hidden, strict=True)]


def parts(output: Any) -> list[Event]:
    """Return an output as parts of answers."""
    if SEVERAL:
        cached, outputs = output.num_cached_tokens, output.outputs
        return [{"ids": list(one.token_ids), "cached": cached, "index": one.index} for one in outputs]
    (one,) = output.outputs
    return [{"ids": list(one.token_ids), "cached": output.num_cached_tokens, "end": one.finish_reason}]
