"""The equations of DFlash and DFlash2 drafts in PyTorch, one request, no cache, nothing fused.

Written from the papers' and the published configurations' description of the models, not from this project's code. A draft is
its config.json and its tensors under their checkpoint names. Sizes: T context tokens, Q rows of a block, E hidden, A taps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draft:
    """A draft model.

    Attributes:
      config: its config.json.
      weights: tensors by name, all of one floating dtype but `d2t`.
    """

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[f"{name}.weight"]

    def inner(self, key: str, default: Any = None) -> Any:
        """A field of dflash_config, or of the top level where old drafts have it."""
        return self.config.get("dflash_config", {}).get(key, self.config.get(key, default))

    @property
    def layers(self) -> int:
        return self.config["num_hidden_layers"]

    @property
    def block_size(self) -> int:
        return self.inner("block_size")

    @property
    def target_layers(self) -> list[int]:
        """Target layers whose outputs are read: named, or spread evenly between the second and the last but three."""
        named = self.inner("target_layer_ids")
        if named:
            return list(named)
        last = self.config["num_target_layers"]
        if self.layers == 1:
            return [last // 2]
        return [round(1 + i * (last - 4) / (self.layers - 1)) for i in range(self.layers)]

    def sliding(self, layer: int) -> bool:
        kinds = self.config.get("layer_types")
        slides = [kind == "sliding_attention" for kind in kinds or []]
        return slides[layer] if any(slides) else bool(self.inner("use_swa", False))

    def window(self, layer: int) -> int | None:
        """Positions that a row looks back, its own included."""
        if not self.sliding(layer):
            return None
        return self.inner("swa_window_size", self.config.get("sliding_window"))

    def causal(self, layer: int) -> bool:
        for stated in (self.config.get("is_causal"), self.config["dflash_config"].get("causal")):
            if stated is not None:
                return stated
        kinds = self.config.get("layer_types") or ["full_attention"] * self.layers
        return kinds[layer] == "sliding_attention"


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Plain weight: nothing is added to it."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, positions: Tensor, theta: float, halves: bool) -> Tensor:
    """Rotary embedding of [T, H, D]; pairs are (i, i + D/2) or, when not `halves`, (2i, 2i + 1)."""
    size = x.shape[-1]
    rates = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = (positions.double()[:, None] * rates)[:, None, :]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = (
        (x[..., : size // 2], x[..., size // 2 :]) if halves else (x[..., ::2], x[..., 1::2])
    )
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)


def _heads(draft: Draft, x: Tensor, layer: int, kind: str) -> Tensor:
    """[T, H, D] of one projection."""
    projected = x @ draft[f"layers.{layer}.self_attn.{kind}_proj"].T
    return projected.unflatten(-1, (-1, draft.config["head_dim"]))


def _turned(draft: Draft, x: Tensor, positions: Tensor, layer: int, kind: str) -> Tensor:
    """Queries or keys: projected, normalised head by head, rotated."""
    config = draft.config
    weight = draft[f"layers.{layer}.self_attn.{kind}_norm"]
    normed = rms(_heads(draft, x, layer, kind), weight, config["rms_norm_eps"])
    theta = config["rope_parameters"]["rope_theta"]
    return rotate(normed, positions, theta, config.get("is_neox_style", True))


def keys_values(draft: Draft, x: Tensor, positions: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """[T, Hkv, D] twice, for context features and for block rows alike."""
    values = _heads(draft, x, layer, "v") * (draft.inner("attention_value_scale") or 1.0)
    return _turned(draft, x, positions, layer, "k"), values


def features(draft: Draft, taps: Tensor) -> Tensor:
    """[T, E] that every layer projects its context keys and values from; taps [A, T, E]."""
    joined = torch.cat(list(taps), -1)
    return rms(joined @ draft["fc"].T, draft["hidden_norm"], draft.config["rms_norm_eps"])


def context(draft: Draft, taps: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer for positions 0, 1, ..., of the taps [A, T, E]."""
    shared, positions = features(draft, taps), torch.arange(taps.shape[1])
    return [keys_values(draft, shared, positions, layer) for layer in range(draft.layers)]


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """[R, H * D] from queries [R, H, D], keys and values [S, Hkv, D] and visible [R, S]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = torch.einsum("rhd,shd->hrs", q, k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hrs,shd->rhd", weights, v).flatten(1)


def convolve(x: Tensor, base: Tensor, delta: Tensor) -> Tensor:
    """Taps back in the block: x [N, Q, E], base [taps, E], delta [N, Q, taps, groups]."""
    width = x.shape[-1] // delta.shape[-1]
    out = torch.zeros_like(x)
    for tap in range(base.shape[0]):
        kernel = base[tap] + delta[:, :, tap].repeat_interleave(width, -1)
        back = torch.zeros_like(x)
        back[:, tap:] = x[:, : x.shape[1] - tap]
        out = out + kernel * back
    return out


def _around(draft: Draft, name: str, x: Tensor, sublayer: Any) -> Tensor:
    """Sublayer of x [N, Q, E], between the two convolutions of a DFlash2 layer; both kernels come from x."""
    if "conv_kernel_size" not in draft.config["dflash_config"]:
        return sublayer(x)
    base = draft.weights[f"{name}.base_kernel"]
    deltas = (x @ draft[f"{name}.kernel_projection"].T).unflatten(-1, (2, base.shape[1], -1))
    inside = sublayer(convolve(x, base[0], deltas[..., 0, :, :]))
    return convolve(inside, base[1], deltas[..., 1, :, :])


def _mlp(draft: Draft, x: Tensor, layer: int) -> Tensor:
    prefix = f"layers.{layer}.mlp."
    gate = torch.nn.functional.silu(x @ draft[f"{prefix}gate_proj"].T)
    return (gate * (x @ draft[f"{prefix}up_proj"].T)) @ draft[f"{prefix}down_proj"].T


def visible(draft: Draft, layer: int, length: int, anchors: Tensor) -> Tensor:
    """bool [N * Q, length + N * Q]: which context tokens and block rows each block row sees.

    Blocks start at the anchors [N]. A row sees the context before its own anchor and inside the window, and its own block:
    all of it, or when causal the rows up to itself.
    """
    size, (window, causal) = draft.block_size, (draft.window(layer), draft.causal(layer))
    owner = torch.arange(len(anchors)).repeat_interleave(size)
    row = torch.arange(size).repeat(len(anchors))
    place = anchors[owner] + row
    seen = torch.arange(length)[None] < anchors[owner][:, None]
    if window is not None:
        seen &= place[:, None] - torch.arange(length)[None] < window
    same = owner[:, None] == owner[None]
    if causal:
        same &= row[None] <= row[:, None]
    return torch.cat([seen, same], 1)


def blocks(draft: Draft, taps: Tensor, anchors: Tensor, embedded: Tensor) -> Tensor:
    """Hidden rows after the last norm, [N, Q, E].

    Args:
      taps: [A, T, E] of positions 0 .. T - 1; a block at anchor a uses those before a.
      anchors: int [N] positions of the blocks' first rows; T of one block is the drafting of the next tokens.
      embedded: [N, Q, E] input rows.
    """
    eps, length = draft.config["rms_norm_eps"], taps.shape[1]
    shared = features(draft, taps)
    places = (anchors[:, None] + torch.arange(embedded.shape[1])).flatten()
    x = embedded
    for layer in range(draft.layers):
        mask = visible(draft, layer, length, anchors)
        before = keys_values(draft, shared, torch.arange(length), layer)

        def attention(u: Tensor, layer: int = layer, mask: Tensor = mask, before=before) -> Tensor:
            rows = u.flatten(0, 1)
            own = keys_values(draft, rows, places, layer)
            k, v = (torch.cat(pair) for pair in zip(before, own, strict=True))
            mixed = attend(_turned(draft, rows, places, layer, "q"), k, v, mask)
            return (mixed @ draft[f"layers.{layer}.self_attn.o_proj"].T).view_as(u)

        name = f"layers.{layer}."
        u = rms(x, draft[f"{name}input_layernorm"], eps)
        x = x + _around(draft, f"{name}attention_conv", u, attention)
        u = rms(x, draft[f"{name}post_attention_layernorm"], eps)
        x = x + _around(draft, f"{name}mlp_conv", u, lambda w, layer=layer: _mlp(draft, w, layer))
    return rms(x, draft["norm"], eps)


def embed(draft: Draft, table: Tensor, tokens: Tensor) -> Tensor:
    """[N, Q, E]: each token [N], then mask tokens."""
    ids = torch.full((len(tokens), draft.block_size), draft.inner("mask_token_id"))
    ids[:, 0] = tokens
    rows = table[ids]
    if "mask_embedding" in draft.weights:
        is_mask = (ids == draft.inner("mask_token_id"))[..., None]
        rows = torch.where(is_mask, draft.weights["mask_embedding"], rows)
    return rows * draft.inner("input_embedding_scale", 1.0)
