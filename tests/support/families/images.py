"""Workloads of the feature images, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.images.cache_workloads import (
    image_cache_resets,
    images_of_several_towers,
    images_over_reloads,
    images_over_updates,
)
from coldproof.harness.features.images.workloads import (
    images_at_the_end,
    images_of_resumed_requests,
    images_partly_evicted,
    images_sent_otherwise,
    images_under_pressure,
    images_with_arguments,
    near_images,
)

USUAL = {
    "images": lambda on: near_images(on, with_adapter=True),
    "images under one name": lambda on: near_images(on, with_adapter=False, named=True),
    "images in other files": images_sent_otherwise,
    "images at the end": images_at_the_end,
    "images with arguments": images_with_arguments,
    "images under pressure": images_under_pressure,
    "images of resumed requests": images_of_resumed_requests,
    "images partly evicted": images_partly_evicted,
    "resets of one cache of images": image_cache_resets,
    "images over new weights": images_over_updates,
    "images of several towers": images_of_several_towers,
    "images over reloads": images_over_reloads,
}
