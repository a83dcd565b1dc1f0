"""Transformers' continuous batching in the process of a script, with prefix sharing and without."""

from __future__ import annotations

import importlib
import queue
import secrets
import threading
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import (
    ADAPTED,
    CHATS,
    FILES,
    GENERATED,
    SETTINGS,
    SEVERAL,
    STALL_SECONDS,
    START_SEED,
)
from coldproof.adapters.spec.script.torch_files import write_lora, write_model


class Engines:
    """An engine with prefix sharing, which serves one adapter at a time, and one without sharing."""

    def __init__(self) -> None:
        if GENERATED:
            write_model(FILES / "model", START_SEED)
        self.warm, self.without = Engine(sharing=True), Engine(sharing=False)

    def load(self, name: str, content: str, folder: str, *, in_place: bool = False, for_all: bool = False) -> None:
        """Load an adapter, or replace it."""
        write_lora(content, FILES / folder)
        self.warm.load(name, folder, for_all=for_all)

    def unload(self, name: str) -> None:
        """Unload an adapter."""
        self.warm.unload(name)

    def reset(self) -> None:
        """Empty the prefix cache."""
        with self.warm.manager.pause():
            self.warm.manager.batch_processor.cache.reset()

    def answers(self, sent: Sent, patience: float = STALL_SECONDS) -> Iterator[Event]:
        """Send a request and yield its answer."""
        return self.warm.answers(sent, sent.get("name"), patience)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Yield the answer of the engine without sharing."""
        name = None
        if ADAPTED and sent["content"] is not None:
            name = f"cold-{secrets.token_hex(4)}"
            write_lora(sent["content"], FILES / name)
            self.without.load(name, name)
        return self.without.answers(sent, name, STALL_SECONDS)

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the token ids of a chat, from the tokenizer's chat template."""
        tokenizer: Any = importlib.import_module("transformers").AutoTokenizer.from_pretrained(SETTINGS["model"])
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def ended(self) -> bool:
        """Return whether the generation loop has ended."""
        return not self.warm.manager.is_running()


class Engine:
    """A model, its manager, and its active PEFT adapter."""

    def __init__(self, *, sharing: bool) -> None:
        torch: Any = importlib.import_module("torch")
        package: Any = importlib.import_module("transformers")
        batching: Any = importlib.import_module("transformers.generation.configuration_utils")
        fields = dict(SETTINGS)
        dtype, device = getattr(torch, fields.pop("dtype")), fields.pop("device")
        attention, folder = fields.pop("attn_implementation"), fields.pop("model")
        model = package.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
        self.model = model.to(device)
        self.manager = self.model.init_continuous_batching(
            package.GenerationConfig(do_sample=False, eos_token_id=-1),
            batching.ContinuousBatchingConfig(**fields | {"allow_block_sharing": sharing}),
        )
        starter = threading.Thread(target=self.manager.start, daemon=True)  # makes the manager's thread a daemon, too
        starter.start()
        starter.join()
        self.came: dict[str, queue.Queue[Any]] = {}
        self.found: dict[str, int] = {}
        if ADAPTED:
            self.on: str | None = None
            self.names: set[str] = set()
            self.running, self.turn = 0, threading.Condition()
        if CHATS:
            self.tokenizer = package.AutoTokenizer.from_pretrained(folder)
        with self.manager.pause():
            cache = self.manager.batch_processor.cache
            search = cache.search_prefix_match
            cache.search_prefix_match = lambda name, ids: self.found.setdefault(name, search(name, ids))
        threading.Thread(target=self.hand_out, daemon=True).start()

    def hand_out(self) -> None:
        """Put each output into the queue of its request."""
        for output in self.manager:
            if output.request_id in self.came:
                self.came[output.request_id].put(output)

    def load(self, name: str, folder: str, *, for_all: bool = False) -> None:
        """Load or replace an adapter while the loop is paused."""
        with self.manager.pause():
            if name in self.names:
                self.model.delete_adapter(name)
            self.model.load_adapter(str(FILES / folder), adapter_name=name)
            self.names.add(name)
            self.switch(name if for_all else self.on)

    def unload(self, name: str) -> None:
        """Unload an adapter while the loop is paused."""
        with self.manager.pause():
            self.model.delete_adapter(name)
            self.names.discard(name)
            self.switch(None if self.on == name else self.on)

    def switch(self, name: str | None) -> None:
        """Activate one adapter only; None: the base model."""
        self.on = name
        if name is not None:
            self.model.enable_adapters()
            self.model.set_adapter(name)
        elif self.names:
            self.model.disable_adapters()

    def answers(self, sent: Sent, adapter: str | None, patience: float) -> Iterator[Event]:
        """Yield the answer to one request."""
        if ADAPTED:
            self.wait_for(adapter)
        name = secrets.token_hex(8)
        names = [name]
        if SEVERAL:
            names += [f"{name}__child#{i}" for i in range(sent.get("extra", {}).get("n", 1) - 1)]
            self.manager.num_return_sequences = len(names)  # add_request takes it from here
        done, left, outputs = dict.fromkeys(names, 0), set(names), queue.Queue[Any]()
        self.came |= dict.fromkeys(names, outputs)
        try:
            self.manager.add_request(
                sent["ids"], request_id=name, max_new_tokens=sent["tokens"], streaming=True, eos_token_id=-1
            )
            while left:
                output = outputs.get(timeout=patience)
                if output.error is not None:
                    raise RuntimeError(output.error)
                each = output.request_id
                new, done[each] = output.generated_tokens[done[each] :], len(output.generated_tokens)
                part = {"index": names.index(each), "ids": new, "cached": self.found.get(name, 0)}
                if CHATS:
                    part["text"] = self.tokenizer.decode(new, skip_special_tokens=True)
                yield part
                if output.is_finished():
                    left.discard(each)
        except queue.Empty:
            raise TimeoutError(f"no output for {patience} s") from None
        finally:
            for each in names:
                self.manager.cancel_request(each)
            if ADAPTED:
                with self.turn:
                    self.running -= 1
                    self.turn.notify_all()

    def wait_for(self, adapter: str | None) -> None:
        """Wait until no request of another adapter runs, and activate this one."""
        with self.turn:
            self.turn.wait_for(lambda: self.running == 0 or self.on == adapter)
            if self.on != adapter:
                with self.manager.pause():
                    self.switch(adapter)
            self.running += 1
