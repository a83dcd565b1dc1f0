"""Which function writes the generated model that a cell serves."""

from __future__ import annotations

from collections.abc import Callable

from coldproof.adapters.common.state_model import make_state_model
from coldproof.adapters.common.tiny_model import make_model, make_sliding_window_model
from coldproof.adapters.common.vision_model import make_vision_model
from coldproof.adapters.spec.cell import ModelLayers

OTHER_SEED = 7  # of the weights of another generated model
# Each takes the folder and `seed`, that of the weights.
MAKERS: dict[ModelLayers, Callable[..., None]] = {
    ModelLayers.FULL: make_model,
    ModelLayers.WINDOW: make_sliding_window_model,
    ModelLayers.STATE: make_state_model,
    ModelLayers.IMAGES: make_vision_model,
}
