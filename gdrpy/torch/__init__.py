"""torch tensors in regions: allocated there, shared by name, or sent to other processes."""

from gdrpy.common.extras import brought_by

with brought_by("gdrpy[torch]"):
    from gdrpy.torch.modules import assign, attach, empty_weights, share, tensors_in, tensors_of
    from gdrpy.torch.pool import Pool
    from gdrpy.torch.reducers import Reducers, install_reducers

__all__ = [
    "Pool",
    "Reducers",
    "assign",
    "attach",
    "empty_weights",
    "install_reducers",
    "share",
    "tensors_in",
    "tensors_of",
]
