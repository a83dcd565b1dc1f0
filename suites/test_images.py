"""Prompts with images: equal token ids, with the content behind them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.images.cache_evidence import ImageCaches
from coldproof.harness.features.images.cache_workloads import (
    image_cache_resets,
    images_of_several_towers,
    images_over_reloads,
    images_over_updates,
)
from coldproof.harness.features.images.evidence import Images
from coldproof.harness.features.images.workloads import (
    images_at_the_end,
    images_of_resumed_requests,
    images_partly_evicted,
    images_sent_otherwise,
    images_under_pressure,
    images_with_arguments,
    near_images,
)
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.weights.evidence import Weights
from coldproof.harness.judgement.evidence.cache import Pressure
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "prompts with images"
IMAGES = (Capability.IMAGES, Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)

CACHES = (Capability.RESET_ENCODER, Capability.RESET_PROCESSOR)


@requirement(
    "MM-1",
    "other images behind equal tokens",
    needs=IMAGES,
    suits=("images",),
    shows=(Images.HITS, Images.OTHER_IMAGE),
    shows_where=dict.fromkeys((Capability.CACHE_SALT, Capability.ADAPTER_CHOICE), Adapters.STALE_CHANCES),
    upstream=("vllm#55547",),
)
@given(data=st.data())
def test_other_images_behind_equal_tokens(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine never shares KV between prompts whose token ids are equal and whose images are not: other
    images, one other pixel, another order.

    Why it can break: the placeholders of all images are equal, so that only a hash of the content separates them, and
    its position where an image is in several blocks. Oracle: cold start over the pixels, and the reference cache over
    what the model sees at each position. Vacuous when no hit reached into an image, or no prompt had another image
    behind the same placeholders.
    """
    workload = near_images(sut.limits, with_adapter=sut.can(Capability.ADAPTER_CHOICE))
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "MM-1",
    "other images under the same name",
    needs=(*IMAGES, Capability.IMAGE_UUIDS, Capability.CACHE_SALT),
    suits=("images",),
    shows=(Images.HITS, Images.SAME_UUID),
    upstream=("vllm#55547",),
)
@given(data=st.data())
def test_other_images_under_the_same_name(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does so also where clients give different images the same name (uuid)."""
    workload = near_images(sut.limits, with_adapter=False, named=True)
    sut.check(data.draw(workload, label="workload"))


@requirement(
    "MM-1",
    "other arguments of the processor",
    needs=(*IMAGES, Capability.PROCESSOR_ARGUMENTS, Capability.CACHE_SALT),
    suits=("images",),
    shows=(Images.TOLD_HITS, Images.OTHER_LOOK, Images.OTHER_BACKGROUND),
)
@given(data=st.data())
def test_other_arguments_of_the_processor(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does so also where the same image comes with other arguments of the engine's processor, which
    makes other pixels of it, or with another colour behind what is transparent in its file. With the same arguments,
    it shares KV.

    Why it can break: a hash of what a client sent does not cover what the processor makes of it. Oracle: cold start
    over what the model sees, and the reference cache over it. An engine that hashes the arguments need not know that
    others make the same pixels: no reuse is required then. Vacuous when no request had other pixels behind the same
    placeholders, none had another colour behind an earlier file, or none hit an image with arguments.
    """
    sut.check(data.draw(images_with_arguments(sut.limits), label="workload"))


@requirement(
    "MM-2",
    "the same images again",
    needs=IMAGES,
    suits=("images",),
    shows=(Images.HITS,),
    shows_where={Capability.IMAGE_PARTS: Images.HITS_INSIDE},
)
@given(data=st.data())
def test_the_same_images_again(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine shares KV between prompts with the same images as it does between prompts of tokens, also
    where a block ends within an image.

    Why it can break: a hit that ends within an image leaves a part of it to be computed. Oracle: the reference cache,
    and cold start. Vacuous when no hit reached into an image, or none ended within one, where hits can end there.
    """
    sut.check(data.draw(near_images(sut.limits, with_adapter=False), label="workload"))


@requirement(
    "MM-2",
    "images at the end of a prompt",
    needs=IMAGES,
    suits=("images",),
    shows=(Images.HITS,),
    shows_where={Capability.IMAGE_PARTS: Images.HITS_INSIDE},
)
@given(data=st.data())
def test_images_at_the_end(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does so also where a prompt ends with an image.

    Why it can break: the last position must be computed, and is a part of an image: a hit on all before it leaves a
    part, and an engine that computes images apart from text has no position of text from which to answer. Oracle and
    evidence: as above.
    """
    sut.check(data.draw(images_at_the_end(sut.limits), label="workload"))


@requirement(
    "MM-2", "the same images in other files", needs=IMAGES, suits=("images",), shows=(Images.HITS, Images.RECODED)
)
@given(data=st.data())
def test_the_same_images_in_other_files(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does so also where the same pixels come in other files."""
    sut.check(data.draw(images_sent_otherwise(sut.limits), label="workload"))


@requirement(
    "MM-3",
    "images cut by chunks, preemption and a small encoder cache",
    needs=(*IMAGES, Capability.METRICS, Capability.PREEMPTION_COUNTS),
    suits=("images in a small pool",),
    shows=(Images.HITS, Images.CUT_IMAGES, Pressure.EVICTED, Images.PREEMPTED_IMAGES),
)
@given(data=st.data())
def test_images_in_a_small_pool(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers prompts with images as cold where a chunk of prefill ends within an image, where a
    request is preempted, where blocks of an image are evicted, and where its encoder cache is smaller than the images
    of a request.

    Why it can break: what the encoder computed must be there for each chunk of an image, and is freed by other rules
    than the blocks. Oracle: cold start over the pixels. Vacuous when no chunk ended within an image, no request with
    images was preempted, or nothing was evicted.
    """
    sut.check(data.draw(images_under_pressure(sut.limits), label="workload"))


@requirement(
    "MM-3",
    "images of which a part is evicted",
    needs=(*IMAGES, Capability.METRICS, Capability.IMAGE_PARTS),
    suits=("images in a small pool",),
    shows=(Images.HITS, Images.EVICTED_IMAGES),
)
@given(data=st.data())
def test_images_partly_evicted(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does so also where a hit ends within an image, because the blocks behind are evicted.

    Why it can break: a part of what the encoder computed of the image is needed, and the hit covers the position at
    which the image begins. Oracle: cold start over the pixels. Vacuous when no hit ended within an image whose other
    blocks an earlier request had left in the cache.
    """
    sut.check(data.draw(images_partly_evicted(sut.limits), label="workload"))


@requirement(
    "MM-3",
    "images of resumed requests",
    needs=(*IMAGES, Capability.METRICS, Capability.PREEMPTION_COUNTS),
    suits=("images in a small pool",),
    shows=(Images.HITS, Images.PREEMPTED_IMAGES),
)
@given(data=st.data())
def test_images_of_resumed_requests(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does so also where a request hit its images, and must compute them after a preemption.

    Why it can break: what covers an image in the cache when a request starts is taken to cover it until the request
    ends, so that the pixels are not kept. Oracle: cold start over the pixels. Vacuous when no hit reached into an
    image, or no request with images was preempted.
    """
    sut.check(data.draw(images_of_resumed_requests(sut.limits), label="workload"))


@requirement(
    "MM-4",
    "resets of one cache of images",
    needs=(*IMAGES, Capability.CACHE_RESET, Capability.CACHE_SALT, *CACHES),
    suits=("image caches",),
    shows=(
        ImageCaches.AFTER_ENCODER,
        ImageCaches.AFTER_PROCESSOR,
        ImageCaches.AFTER_PREFIX,
        Images.HITS_INSIDE,
    ),
)
@given(data=st.data())
def test_resets_of_one_cache_of_images(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers prompts with images as cold after a reset of its prefix cache, of its encoder's cache
    or of its processor's cache alone, and after one of all.

    Why it can break: each of these caches is kept in two places, by the scheduler and the worker, or by the frontend
    and the engine, and a reset of one place leaves the other one to promise what is gone. Oracle: cold start over the
    pixels. Vacuous when no image came again after a reset of each cache alone.
    """
    sut.check(data.draw(image_cache_resets(sut.limits), label="workload"))


@requirement(
    "MM-4",
    "images over new weights",
    needs=(*IMAGES, Capability.WEIGHT_UPDATES, Capability.CACHE_RESET, *CACHES),
    suits=("image caches",),
    shows=(ImageCaches.AFTER_UPDATE, Adapters.DISCRIMINATING, Weights.RETURNS),
)
@given(data=st.data())
def test_images_over_new_weights(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After an update of its weights and the invalidation that it documents, a conforming engine answers prompts with
    images as the new weights cold. Where that is a reset, the encoder's cache has one of its own.

    Why it can break: what the encoder computed of an image depends on the weights, and its key has only the image.
    Oracle: a cold engine that was started with these weights, over the pixels. Vacuous when no image came again that
    other weights had encoded, or both weights answer alike.
    """
    sut.check_updates(data.draw(images_over_updates(sut.limits), label="workload"))


@requirement(
    "MM-4",
    "images of several towers",
    needs=(*IMAGES, Capability.RUNTIME_LORA, Capability.TOWER_ADAPTERS),
    suits=("image caches",),
    shows=(ImageCaches.OF_OTHERS, Adapters.STALE_CHANCES),
)
@given(data=st.data())
def test_images_of_several_towers(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine whose adapters change the vision tower never uses for one adapter, or for the base model,
    what it encoded of the same image for another one.

    Why it can break: the pixels are the same. Oracle: cold start over the pixels, with the adapter. Vacuous when no
    image came again to another adapter.
    """
    sut.check(data.draw(images_of_several_towers(sut.limits), label="workload"))


@requirement(
    "MM-4",
    "images over a reload of the tower's adapter",
    needs=(*IMAGES, Capability.RUNTIME_LORA, Capability.TOWER_ADAPTERS, Capability.CACHE_RESET),
    suits=("image caches",),
    shows=(ImageCaches.AFTER_RELOAD,),
    upstream=("vllm#44939",),
)
@given(data=st.data())
def test_images_over_reloads(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does so also after a reload under the same name.

    Why it can break: the key has the adapter's name, and the content behind it has changed; a reset of the prefix cache
    does not reach the encoder's cache. Oracle and evidence: as above, with the old content in place of another adapter.
    """
    sut.check(data.draw(images_over_reloads(sut.limits), label="workload"))
