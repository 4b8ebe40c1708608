"""Programs whose fused kernels are searched: the six of Mirage's paper (OSDI'25, section 8), and
those that are beyond its reach."""

from collections.abc import Callable

from models.workloads import beyond
from models.workloads.gated_mlp import gated_mlp
from models.workloads.gqa import gqa
from models.workloads.lora import lora
from models.workloads.ntrans import ntrans
from models.workloads.qknorm import qknorm
from models.workloads.rmsnorm_linear import rmsnorm_linear
from taso_mirage.mugraph.graph import KernelGraph

PAPER: dict[str, Callable[..., KernelGraph]] = {
    each.__name__: each for each in (rmsnorm_linear, gated_mlp, lora, gqa, qknorm, ntrans)
}
BEYOND: dict[str, Callable[..., KernelGraph]] = {each.__name__: each for each in beyond.BUILDERS}
