"""A draft in NumPy float64, written from the equations in the form that trainers use: all context rows and all blocks of a
sequence in one attention with a mask. Nothing here knows windows, caches, batches or ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

Weights = Mapping[str, np.ndarray]
EPS = 1e-6


@dataclass(frozen=True)
class Reference:
    """One draft: float64 weights under their published names, config.json of the plain kind that the tests write."""

    weights: Weights
    config: Mapping[str, Any]

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self.weights[name], np.float64)

    @property
    def dflash(self) -> Mapping[str, Any]:
        return self.config["dflash_config"]

    def context_heads(self, layer: int, taps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [S, J, D] of target rows, taps [A, S, E]."""
        rows = np.concatenate(list(np.asarray(taps, np.float64)), axis=-1) @ self["fc.weight"].T
        h = norm(rows, self["hidden_norm.weight"])
        return self._heads(layer, h, np.arange(taps.shape[1]), "k"), self._heads(
            layer, h, np.arange(taps.shape[1]), "v"
        )

    def _heads(self, layer: int, h: np.ndarray, at: np.ndarray, kind: str) -> np.ndarray:
        name = f"layers.{layer}.self_attn.{kind}_proj"
        out = h @ self[f"{name}.weight"].T
        if self.config.get("attention_bias"):
            out = out + self[f"{name}.bias"]
        dim = self.config["head_dim"]
        out = out.reshape(len(h), out.shape[1] // dim, dim)
        if kind == "v":
            return out * self.config.get("attention_value_scale", 1.0)
        out = norm(out, self[f"layers.{layer}.self_attn.{kind}_norm.weight"])
        return rope(out, at, self.config["rope_theta"], self.config.get("is_neox_style", True))

    def blocks(self, taps: np.ndarray, embedded: np.ndarray, anchors: Sequence[int]) -> np.ndarray:
        """Rows after the last norm [N, Q, E] of blocks at these positions, each behind the context before it.

        taps: [A, S, E] of all rows of the sequence; embedded: [N, Q, E] float64 input rows.
        """
        count, width, features = embedded.shape
        at = (np.asarray(anchors)[:, None] + np.arange(width)).reshape(-1)
        x = embedded.reshape(-1, features)
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            u = norm(x, self[prefix + "input_layernorm.weight"])
            x = x + self._around(
                prefix + "attention_conv",
                u,
                width,
                lambda u, n=layer: self._attend(n, u, at, taps, anchors),
            )
            u = norm(x, self[prefix + "post_attention_layernorm.weight"])
            x = x + self._around(prefix + "mlp_conv", u, width, lambda u, p=prefix: self._mlp(p, u))
        return norm(x, self["norm.weight"]).reshape(count, width, features)

    def _around(self, name: str, u: np.ndarray, width: int, inner: Any) -> np.ndarray:
        if "selector_rank" not in self.dflash:
            return inner(u)
        delta = u @ self[f"{name}.kernel_projection.weight"].T
        taps, each = self.dflash["conv_kernel_size"], self.dflash["conv_group_size"]
        delta = delta.reshape(len(u), 2, taps, -1).repeat(each, axis=-1)
        kernel = self[f"{name}.base_kernel"] + delta  # [rows, 2, taps, E]
        return conv(inner(conv(u, kernel[:, 0], width)), kernel[:, 1], width)

    def _attend(
        self, layer: int, u: np.ndarray, at: np.ndarray, taps: np.ndarray, anchors: Sequence[int]
    ) -> np.ndarray:
        width = len(u) // len(anchors)
        context_k, context_v = self.context_heads(layer, taps)
        q, k, v = (self._heads(layer, u, at, kind) for kind in "qkv")
        k, v = np.concatenate([context_k, k]), np.concatenate([context_v, v])
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        mask = self._mask(layer, at, taps.shape[1], anchors, width)
        scores = np.where(mask, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(len(u), -1)
        out = out @ self[f"layers.{layer}.self_attn.o_proj.weight"].T
        return (
            out + self[f"layers.{layer}.self_attn.o_proj.bias"]
            if self.config.get("attention_bias")
            else out
        )

    def _mask(
        self, layer: int, at: np.ndarray, length: int, anchors: Sequence[int], width: int
    ) -> np.ndarray:
        """[queries, context + queries]: context before the anchor, and the block's own rows; inside the window."""
        kind = self.config["layer_types"][layer]
        owner = np.arange(len(at)) // width
        key_at = np.concatenate([np.arange(length), at])
        key_owner = np.concatenate([np.full(length, -1), owner])
        before = (key_owner == -1) & (key_at[None] < np.asarray(anchors)[owner][:, None])
        seen = before | (key_owner[None] == owner[:, None])
        if self.config["is_causal"]:
            seen &= key_at[None] <= at[:, None]
        if kind == "sliding_attention":
            seen &= at[:, None] - key_at[None] < self.config["sliding_window"]
        return seen

    def _mlp(self, prefix: str, u: np.ndarray) -> np.ndarray:
        gate, up = (u @ self[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return (gate * expit(gate) * up) @ self[f"{prefix}mlp.down_proj.weight"].T

    def candidates(
        self, logits: np.ndarray, banned: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids and values [K, U] of logits [K, V], the likeliest first."""
        logits = np.where(banned, -np.inf, logits)
        ids = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
        values = np.take_along_axis(logits, ids, -1) * self.config.get("output_multiplier", 1.0)
        cap = self.config.get("final_logit_softcapping")
        return ids, cap * np.tanh(values / cap) if cap else values

    def scores(
        self, step: int, before: int, hidden: np.ndarray, ids: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """[U] of the candidates of one step behind one token; hidden [K, E]."""
        name = "candidate_selector."
        h = self[name + "hidden_projection.weight"] @ hidden[step]
        left = self[name + "predecessor_codebook"][before] * h
        return values[step] + self[name + "successor_codebook"][ids[step]] @ left


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """RMSNorm with a plain weight."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def rope(x: np.ndarray, at: np.ndarray, theta: float, neox: bool) -> np.ndarray:
    """Each pair of dims as a complex number, turned: x [T, heads, D]."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * at[:, None] * theta ** (-np.arange(half) / half))[:, None]
    first, second = (x[..., :half], x[..., half:]) if neox else (x[..., ::2], x[..., 1::2])
    z = (first + 1j * second) * turn
    out = np.empty_like(x)
    if neox:
        out[..., :half], out[..., half:] = z.real, z.imag
    else:
        out[..., ::2], out[..., 1::2] = z.real, z.imag
    return out


def conv(x: np.ndarray, kernel: np.ndarray, width: int) -> np.ndarray:
    """x [N * width, E], kernel [N * width, taps, E]: taps stop at the first row of a block."""
    out = np.zeros_like(x)
    for row in range(len(x)):
        for tap in range(kernel.shape[1]):
            if row % width >= tap:
                out[row] += kernel[row, tap] * x[row - tap]
    return out
