"""Key and value caches as plain tensors: inputs `past_key_0`, outputs `present_key_0` and so on."""

from __future__ import annotations

from typing import Any

from models import exporter


def names(prefix: str, config: Any) -> tuple[str, ...]:
    """The tensors of a cache, layer by layer."""
    return tuple(f"{prefix}_{kind}_{i}" for i in range(config.num_hidden_layers) for kind in ("key", "value"))


def tensors(config: Any, batch: int, length: int) -> dict[str, Any]:
    """An empty cache of the right shapes."""
    torch = exporter.require("torch")
    shape = (batch, config.num_key_value_heads, length, config.head_dim)
    return {name: torch.zeros(shape) for name in names("past", config)}


def grown(module: Any, input_ids: Any, attention_mask: Any, **past: Any) -> tuple[Any, ...]:
    """Logits, and the cache with the new positions at its end."""
    cache = exporter.require("transformers").DynamicCache
    given = list(past.values())
    held = cache(list(zip(given[::2], given[1::2], strict=True))) if given else cache()
    logits = module(input_ids=input_ids, attention_mask=attention_mask, past_key_values=held, use_cache=True).logits
    return logits, *(t for layer in held.layers for t in (layer.keys, layer.values))
