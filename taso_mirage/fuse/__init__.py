"""The last stage of `optimize`: searched kernels in place of a model's regions (Mirage, OSDI'25), kept where the whole model was measured
faster. A file of this package adds a back end: it has what `backend.Backend` asks for, and a line in `backend.BACKENDS`."""

from taso_mirage.fuse.stage import check_mode, fused, usual_mode

__all__ = ["check_mode", "fused", "usual_mode"]
