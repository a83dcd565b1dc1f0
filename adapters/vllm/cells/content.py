"""Cells whose prompts have more than tokens, and cells whose answers are vectors."""

from __future__ import annotations

from coldproof.adapters.server.content import TRUST_FLAG
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.vllm.cells.cell import NARROW_CHUNKS, SMALL_CHUNKS, VllmCell, small_pool

EMBEDS = ("--enable-prompt-embeds", TRUST_FLAG)
SEEING = (TRUST_FLAG, "--no-enable-lora")  # the generated adapters do not fit this model

EMBED_CELLS = (
    VllmCell(
        name="embeds",
        about="prompts with embedding rows (--enable-prompt-embeds), a pool that never evicts",
        arguments=EMBEDS,
        traits=("embedding rows",),
        own_answers=True,
    ),
    VllmCell(
        name="embeds-tight",
        about="prompts with embedding rows, a pool of 16 blocks, prefill in chunks of at most 64 tokens",
        arguments=small_pool(*EMBEDS, *SMALL_CHUNKS),
        traits=("embedding rows",),
        own_answers=True,
    ),
)

IMAGE_CELLS = (
    VllmCell(
        name="images",
        about="prompts with images (an Idefics3 without weights), a pool that never evicts",
        arguments=(TRUST_FLAG,),
        traits=("images", "image caches"),
        images=True,
        own_answers=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="images-towers",
        about="prompts with images, and adapters that change the vision tower (--enable-tower-connector-lora)",
        arguments=("--enable-tower-connector-lora", TRUST_FLAG),
        traits=("image caches",),
        images=True,
        own_answers=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="images-tight",
        about="prompts with images, a pool of 16 blocks, chunks of 24 tokens, an encoder cache of one image",
        arguments=small_pool(TRUST_FLAG, *NARROW_CHUNKS),
        traits=("images in a small pool",),
        images=True,
        own_answers=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="images-model",
        about="prompts with images, a generated Idefics3 that computes",
        arguments=SEEING,
        traits=("images", "image caches"),
        model=ModelLayers.IMAGES,
        numeric=True,
        alike=False,
    ),
    VllmCell(
        name="images-model-tight",
        about="the generated Idefics3, a pool of 16 blocks, chunks of 24 tokens, an encoder cache of one image",
        arguments=small_pool(*SEEING, *NARROW_CHUNKS),
        traits=("images in a small pool",),
        model=ModelLayers.IMAGES,
        numeric=True,
        alike=False,
    ),
)

# Classes from the output layer's rows of three tokens: a model that generates has no layer for classes.
SCORE = '{"method":"no_post_processing","classifier_from_token":["a"],"num_labels":1}'
CLASSES = '{"method":"no_post_processing","classifier_from_token":["a","b","c"],"num_labels":3}'


def pooling_cell(name: str, about: str, convert: str, *arguments: str) -> VllmCell:
    """Return a cell whose model is served for its vectors."""
    flags = ("--runner", "pooling", "--convert", convert, *arguments)
    return VllmCell(name=name, about=about, arguments=flags, traits=("pooling",), own_answers=True, pools=True)


POOLING_CELLS = (
    pooling_cell(
        "pooling",
        "embeddings (the last token's state), chunks of 24 tokens, a pool that never evicts",
        "embed",
        *NARROW_CHUNKS,
    ),
    pooling_cell(
        "pooling-tokens",
        "an embedding of each token, chunks of 24 tokens, a pool that never evicts",
        "embed",
        *("--pooler-config", '{"task":"token_embed"}'),
        *NARROW_CHUNKS,
    ),
    pooling_cell(
        "pooling-tight",
        "embeddings with a pool of 16 blocks, chunks of 64 tokens",
        "embed",
        *small_pool(*SMALL_CHUNKS),
    ),
    pooling_cell(
        "pooling-classes",
        "classifications, chunks of 24 tokens, a pool that never evicts",
        "classify",
        *("--hf-overrides", CLASSES),
        *NARROW_CHUNKS,
    ),
    pooling_cell(
        "pooling-scores",
        "scores of two texts (one class), chunks of 24 tokens, a pool that never evicts",
        "classify",
        *("--hf-overrides", SCORE),
        *NARROW_CHUNKS,
    ),
)
