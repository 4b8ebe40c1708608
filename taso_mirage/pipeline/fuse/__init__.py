"""The last stage of `optimize`: searched kernels in place of a model's regions (Mirage, OSDI'25),
kept where the whole model was measured faster. Each target's module in `lowering/` makes its
kernels."""

from taso_mirage.pipeline.fuse.modes import check_mode, usual_mode
from taso_mirage.pipeline.fuse.stage import fused

__all__ = ["check_mode", "fused", "usual_mode"]
