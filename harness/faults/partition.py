"""Whose a block is: adapters and salts that are missing in its key, or not told apart there."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.faults.fault import collector
from harness.faults.identity import utils
from harness.faults.patching import Patch, acted, around
from harness.faults.watch import watch_hits

FAULTS, fault = collector("partition")

LONG = 256  # tokens
SHORT = 8  # characters


def adapters_keyed(patch: Patch, key: Callable[[Any], list[tuple[str, ...]]]) -> None:
    """Have a request's adapter stand in the key as `key(request)`; not called for the base model."""

    def keys(original: Any, request: Any) -> Any:
        return key(request) if request.lora_request is not None else original(request)

    around(patch, utils(), "_gen_lora_extra_hash_keys", keys)
    watch_hits(patch)


def keys_changed(patch: Patch, change: Callable[[Any, int, int, tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Have `change(request, start, end, keys)` of a block stand in its hash."""

    def keys(original: Any, request: Any, start: int, end: int, index: int) -> Any:
        extra, index = original(request, start, end, index)
        return change(request, start, end, extra or ()) or None, index

    around(patch, utils(), "generate_block_hash_extra_keys", keys)


def salts_keyed(patch: Patch, change: Callable[[Any, str], str | None]) -> None:
    """Have another salt stand in the key; None: no salt."""

    def changed(request: Any, _start: int, _end: int, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        salts = [change(request, key[1]) if key[0] == "cache_salt" else None for key in keys]
        made = [("cache_salt", s) if key[0] == "cache_salt" else key for key, s in zip(keys, salts, strict=True)]
        return tuple(key for key in made if key[1] is not None)

    keys_changed(patch, changed)
    watch_hits(patch)


def without(kind: str, keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """The keys without those of a kind."""
    return tuple(key for key in keys if key[0] != kind)


def named(request: Any) -> tuple[str, str]:
    """Name and path of a request's adapter."""
    return request.lora_request.lora_name, request.lora_request.lora_path


@fault("LORA-4", "SALT-1", stands_for="vllm PR#8240, PR#20981")
def hashes_forget_who_asks(patch: Patch) -> None:
    """A block's hash has neither adapter nor salt in it."""
    keys_changed(patch, lambda *_: ())
    watch_hits(patch)


@fault("LORA-1", "LORA-2", stands_for="vllm#42125, vllm#30931")
def adapters_are_known_by_name(patch: Patch) -> None:
    """The adapter's name is in the hash, and nothing of what is behind it."""
    adapters_keyed(patch, lambda request: [("lora", named(request)[0], "")])


@fault("LORA-1", stands_for="vllm#42125")
def adapters_are_known_by_number(patch: Patch) -> None:
    """The adapter's number is in the hash, which an in-place reload leaves as it was."""
    adapters_keyed(patch, lambda request: [("lora", str(request.lora_request.lora_int_id), "")])


@fault("LORA-1", stands_for="vllm#42125", rare="only for two folders of the same name in different places")
def adapters_are_known_by_their_folders_name(patch: Patch) -> None:
    """Of an adapter's path only the last part is in the hash."""
    adapters_keyed(patch, lambda request: [("lora", named(request)[0], Path(named(request)[1]).name)])


@fault("LORA-5", "LORA-1", stands_for="vllm PR#48352", rare="from the second change of a name on")
def only_the_first_change_of_a_name_is_noticed(patch: Patch) -> None:
    """Whatever comes behind a name after its second content has the second one's key."""
    seen: dict[str, list[str]] = {}

    def key(request: Any) -> list[tuple[str, ...]]:
        name, path = named(request)
        paths = seen.setdefault(name, [])
        if paths[-1:] != [path]:
            paths.append(path)
        return [("lora", name, paths[min(1, len(paths) - 1)])]

    adapters_keyed(patch, key)


@fault("LORA-4", stands_for="vllm PR#3263", rare="only every eighth adapter that an engine loads")
def every_eighth_adapter_counts_as_none(patch: Patch) -> None:
    """Three bits of an adapter's number say whether it is one: where they are zero it shares with the base model."""

    def key(request: Any) -> list[tuple[str, ...]]:
        return [("lora", *named(request))] if request.lora_request.lora_int_id % 8 else []

    adapters_keyed(patch, key)


@fault("LORA-4", stands_for="vllm PR#3263", rare="only beside a request of another adapter that came just before")
def the_adapter_of_the_request_before_is_in_the_key(patch: Patch) -> None:
    """A request that arrives while the one before it, of another adapter, is still there gets that one's key."""
    latest: list[Any] = []

    def key(request: Any) -> list[tuple[str, ...]]:
        before = latest[-1] if latest and latest[-1] is not request else None
        wrong = before is not None and not before.is_finished() and not request.num_output_tokens
        if not request.num_output_tokens:
            latest[:] = [before if wrong else request]
        return [("lora", *named(before if wrong else request))]

    adapters_keyed(patch, key)


@fault(
    "LORA-4",
    stands_for="sglang#24638",
    equivalent="each hash takes in its parent's, so that the adapter is in all of them, as the salt is in vLLM's own",
)
def only_the_first_block_knows_its_adapter(patch: Patch) -> None:
    """The adapter is in the first block's hash and in no other."""
    keys_changed(patch, lambda _request, start, _end, keys: without("lora", keys) if start else keys)


@fault("LORA-4", stands_for="vllm PR#8240")
def only_the_first_block_knows_anything_of_before(patch: Patch) -> None:
    """The adapter is in the first block's hash only, and from the third block on the parent's hash is in none."""
    keys_changed(patch, lambda _request, start, _end, keys: without("lora", keys) if start else keys)
    depths: dict[Any, int] = {}

    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        depth = depths.get(parent, 0)
        made = original(function, None if depth >= 2 else parent, tokens, extra)
        depths[made] = depth + 1
        return made

    around(patch, utils(), "hash_block_tokens", hashed)
    watch_hits(patch)


@fault("LORA-4", "CHAT-2", stands_for="vllm#23301")
def what_an_adapter_decodes_is_the_base_models(patch: Patch) -> None:
    """A block that an adapter's answer fills has no adapter in its hash: the next turn does not find it."""

    def changed(request: Any, _start: int, end: int, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        if end <= request.num_prompt_tokens or request.lora_request is None:
            return keys
        acted()
        return without("lora", keys)

    keys_changed(patch, changed)


@fault("SALT-1", "LORA-4", stands_for="vllm PR#20981, vllm PR#8240", rare="only for an adapter's requests with a salt")
def a_salt_takes_the_adapters_place(patch: Patch) -> None:
    """A request that has a salt has no adapter in its hashes."""
    adapters_keyed(patch, lambda request: [] if request.cache_salt else [("lora", *named(request))])


@fault("SALT-1", stands_for="LMCache#2878", rare="only for an adapter's requests with a salt")
def an_adapter_takes_the_salts_place(patch: Patch) -> None:
    """A request to an adapter has no salt in its hashes."""
    salts_keyed(patch, lambda request, salt: None if request.lora_request is not None else salt)


@fault("SALT-1", stands_for="vllm PR#20981", rare="only for requests for several answers")
def several_answers_lose_their_salt(patch: Patch) -> None:
    """A request for several answers is looked up and kept as if it had no salt."""
    salts_keyed(patch, lambda request, salt: None if request.request_id[1:2] == "_" else salt)


@fault("SALT-1", "MIXED-1", stands_for="vllm PR#20981", rare="only for requests with stop strings")
def stop_strings_lose_their_salt(patch: Patch) -> None:
    """A request with stop strings is looked up and kept as if it had no salt."""
    salts_keyed(patch, lambda request, salt: None if request.sampling_params.stop else salt)


@fault("SALT-1", stands_for="vllm PR#47696", rare="only for prompts of more than 256 tokens")
def long_prompts_lose_their_salt(patch: Patch) -> None:
    """A long prompt is looked up and kept as if it had no salt."""
    salts_keyed(patch, lambda request, salt: None if request.num_prompt_tokens > LONG else salt)


@fault("SALT-1", stands_for="vllm PR#20981", rare="only beside a request with another salt that came just before")
def the_salt_of_the_request_before_is_in_the_key(patch: Patch) -> None:
    """A request with a salt that arrives while an earlier one, with another salt, is still there gets that one's."""
    latest: list[Any] = []

    def change(request: Any, salt: str) -> str:
        if not latest or latest[0].is_finished():
            latest[:] = [request]
            return salt
        return str(latest[0].cache_salt)

    salts_keyed(patch, change)


@fault("SALT-1", stands_for="vllm PR#20981", rare="only between salts that differ in case")
def salts_ignore_case(patch: Patch) -> None:
    """Salts that differ in upper and lower case only are one."""
    salts_keyed(patch, lambda _, salt: salt.casefold())


@fault("SALT-1", stands_for="vllm PR#20981", rare="only between salts that differ in blanks around them")
def salts_are_stripped(patch: Patch) -> None:
    """Blanks around a salt do not count."""
    salts_keyed(patch, lambda _, salt: salt.strip())


@fault("SALT-1", stands_for="LMCache#4086", rare="only between salts that part behind eight characters")
def salts_are_cut(patch: Patch) -> None:
    """Eight characters of a salt are kept."""
    salts_keyed(patch, lambda _, salt: salt[:SHORT])


@fault("SALT-1", stands_for="LMCache#4086", rare="only between salts of which one begins with the other and a hyphen")
def salts_end_at_a_separator(patch: Patch) -> None:
    """What follows a hyphen in a salt is not kept."""
    salts_keyed(patch, lambda _, salt: salt.split("-")[0])


@fault("SALT-1", stands_for="LMCache#4086", rare="only between salts that look alike in Unicode")
def salts_are_normalised(patch: Patch) -> None:
    """Characters that Unicode takes for variants of one another are one."""
    salts_keyed(patch, lambda _, salt: unicodedata.normalize("NFKC", salt))


@fault("SALT-1", stands_for="vllm#44701", rare="only where a salt equals an adapter's name")
def salts_pass_for_adapters(patch: Patch) -> None:
    """Adapters and salts stand in the key without saying which they are."""
    keys_changed(patch, lambda _request, _start, _end, keys: tuple(key[1] for key in keys))
    watch_hits(patch)


@fault("SALT-1", stands_for="sglang#24638", rare="only where a salt equals another one, a hyphen and an adapter's name")
def salt_and_adapter_are_joined(patch: Patch) -> None:
    """Salt and adapter stand in the key as one string."""

    def joined(request: Any, _start: int, _end: int, _keys: tuple[Any, ...]) -> tuple[Any, ...]:
        name = request.lora_request.lora_name if request.lora_request is not None else None
        words = [word for word in (request.cache_salt, name) if word]
        return ("-".join(words),) if words else ()

    keys_changed(patch, joined)
    watch_hits(patch)
