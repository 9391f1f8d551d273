"""The multi-token-prediction head in NumPy, float64, one row after the other over a whole sequence.

Written from the equations alone: no batch, no pages, no chunks; the rotary embedding is a complex product.
"""

from collections.abc import Mapping

import numpy as np

from onecat_jax.models.qwen3_5 import ModelConfig

Tensors = Mapping[str, np.ndarray]


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (1 + weight)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def turned(x: np.ndarray, position: int, config: ModelConfig) -> np.ndarray:
    """Rotary embedding of heads [H, D] at one position."""
    half = config.rotary_dim // 2
    angle = position / config.rope_theta ** (2 * np.arange(half) / config.rotary_dim)
    pair = (x[:, :half] + 1j * x[:, half : 2 * half]) * np.exp(1j * angle)
    return np.concatenate([pair.real, pair.imag, x[:, 2 * half :]], axis=-1)


class Layer:
    """One decoder layer of the head with the keys and values of what it has seen."""

    def __init__(self, tensors: Tensors, index: int, config: ModelConfig):
        self.config = config
        self.at = {
            name.removeprefix(f"mtp.layers.{index}."): np.asarray(value, np.float64)
            for name, value in tensors.items()
            if name.startswith(f"mtp.layers.{index}.")
        }
        self.cache: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def row(self, x: np.ndarray, position: int) -> np.ndarray:
        """x [E] at a position, whatever was there before."""
        c, w = self.config, self.at
        h = norm(x, w["input_layernorm.weight"], c.rms_norm_eps)
        q_gate = (w["self_attn.q_proj.weight"] @ h).reshape(-1, 2, c.head_dim)
        q, gate = q_gate[:, 0], q_gate[:, 1]
        k = (w["self_attn.k_proj.weight"] @ h).reshape(-1, c.head_dim)
        v = (w["self_attn.v_proj.weight"] @ h).reshape(-1, c.head_dim)
        q = turned(norm(q, w["self_attn.q_norm.weight"], c.rms_norm_eps), position, c)
        k = turned(norm(k, w["self_attn.k_norm.weight"], c.rms_norm_eps), position, c)
        self.cache[position] = (k, v)
        out = np.concatenate(
            [self._head(q[i], i, position) * sigmoid(gate[i]) for i in range(len(q))]
        )
        x = x + w["self_attn.o_proj.weight"] @ out
        h = norm(x, w["post_attention_layernorm.weight"], c.rms_norm_eps)
        up, g = w["mlp.up_proj.weight"] @ h, w["mlp.gate_proj.weight"] @ h
        return x + w["mlp.down_proj.weight"] @ (g * sigmoid(g) * up)

    def _head(self, q: np.ndarray, index: int, position: int) -> np.ndarray:
        j = index // (self.config.num_attention_heads // self.config.num_key_value_heads)
        keys = np.stack([self.cache[t][0][j] for t in range(position + 1)])
        values = np.stack([self.cache[t][1][j] for t in range(position + 1)])
        scores = keys @ q * self.config.head_dim**-0.5
        weights = np.exp(scores - scores.max())
        return weights / weights.sum() @ values


class Head:
    """The whole head of one sequence."""

    def __init__(self, tensors: Tensors, config: ModelConfig):
        self.tensors = {n: np.asarray(v, np.float64) for n, v in tensors.items()}
        self.config = config
        count = config.mtp_num_hidden_layers
        self.layers = [Layer(self.tensors, i, config) for i in range(count)]

    def row(self, token: int, hidden: np.ndarray, position: int, turn: int = 0) -> np.ndarray:
        """The token after a position and the hidden row of the position -> the head's output [E] after its norm."""
        t, eps = self.tensors, self.config.rms_norm_eps
        e = norm(t["embed_tokens.weight"][token], t["mtp.pre_fc_norm_embedding.weight"], eps)
        h = norm(np.asarray(hidden, np.float64), t["mtp.pre_fc_norm_hidden.weight"], eps)
        z = t["mtp.fc.weight"] @ np.concatenate([e, h])
        outs = [layer.row(z, position) for layer in self.layers]
        return norm(outs[turn], t["mtp.norm.weight"], eps)

    def logits(self, out: np.ndarray) -> np.ndarray:
        name = "embed_tokens" if self.config.tie_word_embeddings else "lm_head"
        return self.tensors[f"{name}.weight"] @ out
