"""torch tensors in regions: allocated there, or shared by name with other processes."""

from gdrpy.common.extras import brought_by

with brought_by("gdrpy[torch]"):
    from gdrpy.torch.modules import assign, attach, empty_weights, share, tensors_in, tensors_of
    from gdrpy.torch.pool import Pool

__all__ = ["Pool", "assign", "attach", "empty_weights", "share", "tensors_in", "tensors_of"]
