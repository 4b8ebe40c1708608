"""A layer of gated experts (Shazeer et al., ICLR'17), of which a router chooses a few for each
token, as exporters write it: every expert of every token, or the weights of the chosen ones."""

import onnx
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from models import exporter


class Experts(nn.Module):
    """Tokens (t, w) to (t, w): the sum of the chosen experts' results by their shares."""

    def __init__(self, experts: int, top: int, width: int, hidden: int, gathered: bool) -> None:
        super().__init__()
        self.top, self.gathered = top, gathered
        self.router = nn.Linear(width, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.empty(experts, width, hidden)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, tokens: Tensor) -> Tensor:
        shares, chosen = torch.topk(torch.softmax(self.router(tokens), -1), self.top)
        shares = shares / shares.sum(-1, keepdim=True)
        if self.gathered:
            x = tokens[:, None, None]
            made = (silu(x @ self.gate[chosen]) * (x @ self.up[chosen])) @ self.down[chosen]
            return (made[:, :, 0] * shares[..., None]).sum(1)
        every = torch.zeros(tokens.shape[0], self.router.out_features).scatter(1, chosen, shares)
        made = (silu(tokens @ self.gate) * (tokens @ self.up)) @ self.down
        return (made * every.T[..., None]).sum(0)


def experts(
    *,
    small: bool = True,
    seed: int = 0,
    batch: int = 16,
    gathered: bool = False,
    sizes: tuple[int, int, int, int] | None = None,
    dynamic: bool = False,
) -> onnx.ModelProto:
    """`batch` tokens, and of `sizes` experts, chosen ones, width and hidden width: 64, 8, 1024 and
    512, or 8, 2, 64 and 96."""
    count, top, width, hidden = sizes or ((8, 2, 64, 96) if small else (64, 8, 1024, 512))
    module = Experts(count, top, width, hidden, gathered)
    exporter.randomize(module, seed)
    for parameter, rows in ((module.gate, width), (module.up, width), (module.down, hidden)):
        parameter.data *= (parameter[0].numel() / rows) ** 0.5
    free = {"tokens": {0: "tokens"}} if dynamic else None
    return exporter.export(module, {"tokens": torch.zeros(batch, width)}, "result", dynamic=free)
