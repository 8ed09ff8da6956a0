"""Host arrays on their way to the device, and results on their way back."""

from __future__ import annotations

from typing import Any

import numpy as np
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


class PinnedBuffer:
    """int64 memory that the device copies from and to; `tensor` and `array` are the same memory."""

    __slots__ = ("array", "tensor")

    def __init__(self, size: int) -> None:
        self.tensor = torch.zeros(size, dtype=torch.int64, pin_memory=torch.cuda.is_available())
        self.array: npt.NDArray[np.int64] = self.tensor.numpy()


class PinnedPool:
    """Buffers that steps borrow: cheaper than an allocation for each, and as safe, since a step gives its own back after its event has passed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = [PinnedBuffer(size), PinnedBuffer(size)]  # of two steps in flight: the first ones don't wait for an allocation

    def take(self) -> PinnedBuffer:
        return self._free.pop() if self._free else PinnedBuffer(self._size)

    def give_back(self, buffer: PinnedBuffer) -> None:
        """Nothing on the device may use it any more."""
        self._free.append(buffer)
