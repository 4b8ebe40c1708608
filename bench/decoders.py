"""Steps of decoders with caches, as torch modules that are functions of tensors: one token, and the
keys and values of the layers in turn, before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import nn

Built = tuple[nn.Module, dict[str, torch.Tensor]]
Write = Callable[[torch.Tensor, int, torch.Tensor, torch.Tensor], torch.Tensor]
"""`torch.Tensor.index_copy`, in place or not."""
BLOCK = 32
"""The number of weights of few bits with one scale."""


def of(kind: str, options: Mapping[str, Any]) -> Any:
    """A model of transformers by the name of its class. Experts are gathered, which exporters can
    write for any token."""
    import transformers

    made = getattr(transformers, kind)
    found = made(made.config_class(**options))
    gather_experts(found, True)
    return found


def gather_experts(model: Any, gathered: bool) -> None:
    """Let layers of experts gather the weights for each token, or else go through the experts,
    which many tokens need: gathered weights are as many as all tokens choose."""
    if getattr(model.config, "num_experts", None):
        model.set_experts_implementation("batched_mm" if gathered else "eager")


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.arange(batch * length).reshape(batch, length) % 97


class Cached(nn.Module):
    """A decoder's step as a function of tensors: one token, the mask, and keys and values of the
    layers in turn, before and after."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **past: torch.Tensor) -> Any:
        from transformers import DynamicCache

        given = [*past.values()]
        cache = DynamicCache(list(zip(given[::2], given[1::2], strict=True)))
        logits = self.module(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True
        ).logits
        return logits, *(t for layer in cache.layers for t in (layer.keys, layer.values))


def step(kind: str, past: int = 512, batch: int = 1, **options: Any) -> Built:
    """One token after so many cached ones."""
    module = of(kind, options)
    mask = torch.ones(batch, past + 1, dtype=torch.int64)
    caches = {name: torch.randn(shape) for name, shape in cache_shapes(module.config, batch, past).items()}
    return Cached(module), {"input_ids": tokens(batch, 1), "attention_mask": mask, **caches}


class Room(nn.Module):
    """A step whose caches have a fixed length, the form that a CUDA graph needs: the row of the new
    token is at `position`, and rows behind it are hidden."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module, self.layer = module, row_writer()

    def forward(self, input_ids: torch.Tensor, position: torch.Tensor, **past: torch.Tensor) -> Any:
        cache, logits, token = self.step(input_ids, position, past, torch.Tensor.index_copy)
        return token, logits, *(each for layer in cache.layers for each in (layer.keys, layer.values))

    def step(
        self, input_ids: torch.Tensor, position: torch.Tensor, past: Mapping[str, torch.Tensor], write: Write
    ) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """The caches after the token, its logits, and the next token, which has the largest one."""
        from transformers.cache_utils import Cache

        given = [*past.values()]
        pairs = zip(given[::2], given[1::2], strict=True)
        layers = Cache(layers=[self.layer(*pair, position, write) for pair in pairs])
        found = self.module(input_ids=input_ids, position_ids=position[None], past_key_values=layers, use_cache=True)
        return layers, found.logits, found.logits.argmax(-1)


def row_writer() -> Any:
    """A class of a cache's layers whose row at a position is written. It is made outside of the
    step, because a definition of a class ends the graph that dynamo traces."""
    from transformers.cache_utils import StaticLayer

    class Layer(StaticLayer):
        def __init__(self, keys: torch.Tensor, values: torch.Tensor, position: torch.Tensor, write: Write) -> None:
            super().__init__(keys.shape[2])
            self.keys, self.values, self.cumulative_length, self.is_initialized = keys, values, position, True
            self.position, self.write = position, write

        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
            self.keys = self.write(self.keys, 2, self.position, key_states)
            self.values = self.write(self.values, 2, self.position, value_states)
            return self.keys, self.values

    return Layer


def room(kind: str, length: int = 2048, batch: int = 1, **options: Any) -> Built:
    """One token beside caches with room for so many."""
    module = of(kind, options)
    caches = {name: torch.zeros(shape) for name, shape in cache_shapes(module.config, batch, length).items()}
    return Room(module), {"input_ids": tokens(batch, 1), "position": torch.tensor([length // 2]), **caches}


class Adapted(nn.Module):
    """A linear layer beside which a product of two narrow ones is added: an adapter of LoRA (Hu et
    al., 2021) that is not merged into the weights, as `peft` computes it."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        for each in (self.down, self.up):
            nn.init.normal_(each.weight, std=0.02)  # as transformers initializes the base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + self.up(self.down(x)) * self.scale
        return found


def adapted(rank: int = 16, scale: float = 2.0, **options: Any) -> Built:
    """A `room` whose linear layers, other than the head, have adapters of this rank."""
    module, inputs = room(**options)
    layers = module.module.get_decoder()
    for name, each in [*layers.named_modules()]:
        if isinstance(each, nn.Linear):
            layers.set_submodule(name, Adapted(each, rank, scale))
    return module, inputs


def bytes_of_a_step(module: Room, batch: int, past: int, bits: int = 0) -> int:
    """The bytes of weights and of cached rows of all sequences that a step reads once: none of the
    embedding, and of experts only those that a single token chooses. With `bits`, linear layers are
    stored in so many, and have a scale in half precision for each block of BLOCK weights."""
    config, total = module.module.config, 0.0
    embedding = module.module.get_input_embeddings().weight
    for name, each in module.module.named_parameters():
        chosen = config.num_experts_per_tok / config.num_experts if ".experts." in name else 1.0
        size = bits / 8 + 2 / BLOCK if bits and each.dim() > 1 else each.element_size()
        total += 0 if each is embedding else chosen * each.numel() * size
    rows = sum(prod(shape) for shape in cache_shapes(config, batch, past).values())
    return round(total) + rows * embedding.element_size()


def cache_shapes(config: Any, batch: int, length: int) -> dict[str, tuple[int, ...]]:
    """The shapes of keys and values by the names of inputs."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = batch, config.num_key_value_heads, length, width
    return {f"past_{kind}_{i}": shape for i in range(config.num_hidden_layers) for kind in ("key", "value")}
