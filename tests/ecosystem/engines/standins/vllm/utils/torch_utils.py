from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def set_default_torch_dtype(dtype: torch.dtype) -> Iterator[None]:
    """As in the genuine one, the type stays if the block raises."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)
