"""A workload in the commands of its engine, or in words alone where the engine runs in the script's own process."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from harness.dialects.dialects import dialect_of
from harness.shell_story import Shell, ShellStep, hanging_up
from harness.workload import Request, Route, SetAdapter, spelled
from reports.schema import Case


class LlamaCppShell(Shell):
    """The routes of llama.cpp's server. The adapters were there from the start, numbered as the case names them."""

    reset = "# there is no route that empties the cache"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.behind: dict[str, str] = {}
        self.everybody: str | None = None

    def set_adapter(self, step: SetAdapter) -> str:
        """A call where it is switched on for every request; else each request to the name says which it wants."""
        self.behind[step.name] = step.content
        if step.route is not Route.SWITCH:
            return f"# requests to {step.name!r} choose adapter {step.content}"
        self.everybody = step.name
        return self.post("/lora-adapters", f"'{self.scales(step.content)}'")

    def unload(self, name: str) -> str:
        """Only what is switched on can be switched off."""
        if name != self.everybody:
            return f"# nobody asks {name!r} any more"
        self.everybody = None
        return self.post("/lora-adapters", f"'{self.scales(None)}'")

    def move_state(self, action: str, name: str) -> str:
        """A call for each slot of the server that the case was found on."""
        words = self.case.engine_config["command"].split()
        slots = int(words[len(words) - words[::-1].index("--parallel")]) if "--parallel" in words else 1
        file = spelled(name, self.case.nonce)
        return "\n".join(
            self.post(f"/slots/{slot}?action={action}", f'\'{{"filename": "{file}-{slot}.bin"}}\'')
            for slot in range(slots)
        )

    def request(self, request: Request, _number: int) -> str:
        """One request to /completion."""
        body: dict[str, object] = {"n_predict": request.max_tokens, "temperature": 0, "ignore_eos": True}
        body |= {"return_tokens": True, "cache_prompt": True}
        if request.adapter is None and self.everybody is not None:
            body["lora"] = self.chosen(None)
        elif request.adapter is not None and request.adapter != self.everybody:
            body["lora"] = self.chosen(self.behind[request.adapter])
        return self.asked("/completion", request, body, hanging_up(request))

    def chosen(self, content: str | None) -> list[dict[str, float]]:
        """One adapter on, the others off."""
        return [{"id": i, "scale": float(name == content)} for i, name in enumerate(self.case.recipes)]

    def scales(self, content: str | None) -> str:
        """The same as JSON."""
        return msgspec.json.encode(self.chosen(content)).decode()


class SglangShell(Shell):
    """The routes of SGLang's server."""

    reset = 'curl -X POST "$SERVER/flush_cache"'
    load_path, unload_path = "/load_lora_adapter", "/unload_lora_adapter"

    def request(self, request: Request, number: int) -> str:
        """One request to /generate."""
        row = self.rows.get(number)
        sampling = {"max_new_tokens": request.max_tokens, "temperature": 0, "ignore_eos": True}
        body: dict[str, object] = {"sampling_params": sampling}
        if request.adapter is not None and row is not None:
            body["lora_path"] = row.model
        if request.salt is not None:
            body["cache_salt"] = spelled(request.salt, self.case.nonce)
        return self.asked("/generate", request, body, hanging_up(request), field="input_ids")


class Words(Shell):
    """No commands: the script is the story."""

    def steps(self) -> Iterator[ShellStep]:
        """Every step in words."""
        return (msgspec.structs.replace(step, commands="") for step in super().steps())


def shell_of(case: Case) -> Shell:
    """The story in the language of a case's engine."""
    if dialect_of(case).in_process:
        return Words(case)
    return {"llamacpp": LlamaCppShell, "sglang": SglangShell}.get(case.engine, Shell)(case)
