"""Input buffers of vLLM's V1 model runner in regions: the CPU stores what vLLM queues copies of.

A queued copy begins after all work of its stream. If that work is done, the copy would begin at
once, and the CPU stores the values instead. Otherwise the GPU may still read the last step's
inputs, and the copy is queued as without gdrpy.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from gdrpy import cuda
from gdrpy.region import alloc

#: Bytes that the CPU stores at most, in about 3 us. To queue a copy takes it longer.
_MOST = 64 << 10

#: How many copies to such buffers this process has stored, and how many it has queued.
counts = {"stored": 0, "queued": 0}


def install() -> None:
    """Have vLLM make the input buffers of this process in regions from now on."""
    from vllm.v1.utils import CpuGpuBuffer

    _replace(CpuGpuBuffer)


@functools.cache
def _replace(buffers: Any) -> None:
    """Wrap two methods of the class, which vLLM's modules have imported by its name."""
    init, copy_to_gpu = buffers.__init__, buffers.copy_to_gpu

    @functools.wraps(init)
    def init_in_region(self: Any, *size: Any, **options: Any) -> None:
        """Raises as :func:`gdrpy.alloc`."""
        init(self, *size, **options)
        self._mapped = None, None
        own = self.gpu
        # Buffers without a numpy array are large. vLLM on CPUs has no GPU tensors.
        if hasattr(self, "np") and own.nbytes and (own.is_cuda or cuda.simulated()):
            region = alloc(own.nbytes, own.device.index or 0)
            with torch.inference_mode(False):
                self.gpu = torch.from_dlpack(region.array(own.shape, own.dtype)).copy_(own)
            self._mapped = region.cpu, self.gpu

    @functools.wraps(copy_to_gpu)
    def store_to_gpu(self: Any, n: int | None = None) -> torch.Tensor:
        mapping, gpu = getattr(self, "_mapped", (None, None))  # absent if it was made before
        if mapping is not None and gpu is self.gpu:
            values = self.np[:n]
            if values.nbytes <= _MOST and _idle(gpu):
                mapping.write(values)
                counts["stored"] += 1
                return gpu if n is None else gpu[:n]
        counts["queued"] += 1
        return copy_to_gpu(self, n)

    buffers.__init__, buffers.copy_to_gpu = init_in_region, store_to_gpu


def _idle(gpu: torch.Tensor) -> bool:
    """Whether a copy to the tensor would begin at once: the stream that it goes to has no work."""
    if not gpu.is_cuda:  # on the simulated GPU, where torch's work is done when its calls return
        return True
    if gpu.device.index != torch.cuda.current_device() or torch.cuda.is_current_stream_capturing():
        return False  # a stream that is being captured must not be asked
    return bool(torch.cuda.current_stream().query())
