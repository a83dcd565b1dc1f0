"""Which content beside tokens a vLLM takes: images and embedding rows, by its model and its flags.

In process, the configuration says it. For a server, the files of its model and its command line do; only where these
allow images or rows, its list of routes and its tokenizer are requested too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.version import Version

from coldproof.adapters.common.image_model import DELIMITERS
from coldproof.adapters.common.reset_route import SIDE_PATHS
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.resets import SCOPE_CAPABILITIES
from coldproof.adapters.protocol.shape import EngineShape, ImageShape
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.content import ARGUMENTS_FLAG, TRUST_FLAG
from coldproof.adapters.server.openapi import OPENAPI, listed_routes
from coldproof.adapters.vllm.releases import installed_version, released_from

TRUSTS_ARGUMENTS = Version("0.32.dev0")  # the first version that is known to have ARGUMENTS_FLAG
EMBEDS_FLAG, TOWERS_FLAG = "--enable-prompt-embeds", "--enable-tower-connector-lora"
IDEFICS = "idefics3"
SQUARES = "the model is an Idefics3 whose images are squares of known size"
OTHER_MODEL = "Coldproof sends images to an Idefics3 only"
NO_IMAGES = Support(False, "the prompts have no images")
NOT_TRUSTED = Support(False, f"content and tokens are the parts of a chat in a template of the request: {TRUST_FLAG}")
NOT_TEXT = Support(False, "content and tokens are the parts of a chat, and a token of this model is no character")
ONE_OF_BOTH = Support(False, "a part of a chat is text or rows: nothing is under either")
PRINTABLE = range(32, 127)
IMAGES = (
    Capability.IMAGES,
    Capability.IMAGE_UUIDS,
    Capability.IMAGE_PARTS,
    Capability.PROCESSOR_ARGUMENTS,
)


class VisionConfig(msgspec.Struct, frozen=True):
    """The sizes of a vision tower, in pixels."""

    image_size: int = 0
    patch_size: int = 1


class ModelFacts(msgspec.Struct, frozen=True):
    """The fields of a model's config.json that say what content it takes."""

    model_type: str = ""
    hidden_size: int = 0
    scale_factor: int = 1
    vision_config: VisionConfig = VisionConfig()


def image_shape(model_type: str, *, side: int, patch: int, scale: int) -> ImageShape | None:
    """Return the images that a model takes; None if it takes none, or if Coldproof does not know how many positions
    they need.
    """
    return ImageShape(side, (side // patch // scale) ** 2 + DELIMITERS) if model_type == IDEFICS else None


def image_support(shape: ImageShape | None) -> dict[Capability, Support]:
    """Return whether prompts may have images, by the served model."""
    what = Support(shape is not None, SQUARES if shape is not None else OTHER_MODEL)
    return dict.fromkeys(IMAGES, what)


def tower_support(image: ImageShape | None, *, enabled: bool) -> Support:
    """Return whether adapters change what the encoder computes, by the flag."""
    return NO_IMAGES if image is None else flag_support(TOWERS_FLAG, enabled=enabled)


def flag_support(flag: str, *, enabled: bool) -> Support:
    """Return support by a flag."""
    return Support(enabled, f"{flag} is {'set' if enabled else 'not set'}")


def flags(arguments: Sequence[str]) -> list[str]:
    """Return the flag by which a server that takes content takes arguments of the processor with it, if it has one."""
    return [ARGUMENTS_FLAG] if TRUST_FLAG in arguments and released_from(installed_version(), TRUSTS_ARGUMENTS) else []


def of_server(
    model: str, command: Sequence[str], client: HttpClient, shape: EngineShape
) -> tuple[EngineShape, Mapping[Capability, Support]]:
    """Return the shape of a spawned server with the sizes of its content, and the support of content."""
    path = Path(model) / "config.json"
    facts = msgspec.json.decode(path.read_bytes(), type=ModelFacts) if path.is_file() else ModelFacts()
    vision = facts.vision_config
    image = image_shape(facts.model_type, side=vision.image_size, patch=vision.patch_size, scale=facts.scale_factor)
    rows = EMBEDS_FLAG in command and facts.hidden_size > 0
    routes = listed_routes(client) if image is not None else set()
    resets = {
        SCOPE_CAPABILITIES[scope]: Support(
            route in routes, f"{OPENAPI} {'lists' if route in routes else 'lacks'} {route}"
        )
        for scope, route in SIDE_PATHS.items()
    }
    found = {
        **image_support(image),
        Capability.TOWER_ADAPTERS: tower_support(image, enabled=TOWERS_FLAG in command),
        Capability.EMBEDDING_ROWS: flag_support(EMBEDS_FLAG, enabled=rows),
        Capability.HIDDEN_ROWS: ONE_OF_BOTH,
        **(resets if image is not None else dict.fromkeys(resets, NO_IMAGES)),
    }
    obstacle = parts_obstacle(client, command) if image is not None or rows else None
    if obstacle is not None:
        found |= {one: obstacle for one in (*IMAGES, Capability.EMBEDDING_ROWS) if found[one].present}
        image, rows = None, False
    elif image is not None:
        found[Capability.PROCESSOR_ARGUMENTS] = flag_support(ARGUMENTS_FLAG, enabled=ARGUMENTS_FLAG in command)
    width = facts.hidden_size if rows else None
    return msgspec.structs.replace(shape, image=image, row_width=width), found


def parts_obstacle(client: HttpClient, command: Sequence[str]) -> Support | None:
    """Return why a prompt cannot be sent as the parts of a chat; None if it can."""
    if TRUST_FLAG not in command:
        return NOT_TRUSTED
    text = "".join(map(chr, PRINTABLE))
    return None if client.tokens_of("base", text) == tuple(PRINTABLE) else NOT_TEXT
