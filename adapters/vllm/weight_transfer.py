"""A backend for vLLM's weight transfer that reads the new weights from a folder.

vLLM's own backends need GPUs. Everything else of the transfer is vLLM's: the routes, the methods of the worker, and the
order of start, update and finish. vLLM loads this module by its name, so it may import vLLM.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from coldproof.adapters.vllm.weight_loading import LOADS_FOLDERS, files_of, tensors


@dataclasses.dataclass
class NothingToAgreeOn(WeightTransferInitInfo):
    """What trainer and engine agree on before the first transfer: nothing."""


@dataclasses.dataclass
class FolderOfWeights(WeightTransferUpdateInfo):
    """The folder that has the new weights."""

    path: str


class FolderTransfer(WeightTransferEngine):
    """Loads checkpoints layer by layer between start and finish, as vLLM's backends for checkpoints do."""

    init_info_cls = NothingToAgreeOn
    update_info_cls = FolderOfWeights

    def init_transfer_engine(self, init_info: NothingToAgreeOn) -> None:
        """Do nothing: there is no connection."""

    def start_weight_update(self) -> None:
        """Prepare the layers to be loaded again."""
        if not hasattr(self.model, LOADS_FOLDERS):
            initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Read the weights. vLLM's own method also waits for the accelerator, which a CPU does not have."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FolderOfWeights) -> None:
        """Load the files of the folder."""
        folder = Path(update_info.path)
        if hasattr(self.model, LOADS_FOLDERS):
            self.model.load_folder(folder)
        else:
            self.model.load_weights(tensors(files_of(folder)))

    def finish_weight_update(self) -> None:
        """Derive what kernels keep beside the parameters."""
        if not hasattr(self.model, LOADS_FOLDERS):
            finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Do nothing: there is no connection."""
