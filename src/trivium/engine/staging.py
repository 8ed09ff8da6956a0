"""Host arrays on their way to the device."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


class Staging:
    """Ships numpy arrays without waiting.

    Each array gets pinned memory of its own from torch's caching host allocator, which hands a buffer out again only after the copy that
    used it has run; so the host never overwrites what a copy in flight still reads.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def ship(self, array: npt.NDArray[Any]) -> Tensor:
        """Same dtype and shape, on the device; on a CPU the array itself."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        """A host copy that is complete once an event recorded after this call has passed."""
        if self.device.type == "cpu":
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)
