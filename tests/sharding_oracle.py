"""Which part of every tensor a rank holds, written from the heads and features that it owns, and random models to split.

Shares nothing with the package but the tensors' names and the host classes.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from checkpoints import E2M1, SMALL, tensor_specs
from hypothesis import strategies as st

from onecat_jax.custom_calls.linear import DenseTensor, NVFP4Tensor
from onecat_jax.models.qwen3_5 import ModelConfig
from onecat_jax.models.tensors import HostTensor

Held = tuple[int, np.ndarray]  # dimension, indices of it in the order that a rank holds them


def _own(count: int, each: int, rank: int, ranks: int, first: int = 0) -> np.ndarray:
    """Indices of a rank's share of `count` units of `each` indices, the first unit at `first`."""
    units = [u for u in range(count) if u * ranks // count == rank]
    return np.concatenate([first + u * each + np.arange(each) for u in units])


def _kv(c: ModelConfig, rank: int, ranks: int) -> np.ndarray:
    """Rows of the key/value heads that a rank's query heads read."""
    group = c.num_attention_heads // c.num_key_value_heads
    queries = [
        h for h in range(c.num_attention_heads) if h * ranks // c.num_attention_heads == rank
    ]
    heads = sorted({h // group for h in queries})
    return np.concatenate([j * c.head_dim + np.arange(c.head_dim) for j in heads])


def _qkv(c: ModelConfig, rank: int, ranks: int) -> np.ndarray:
    """Query, key and value channels of the GDN heads that a rank owns."""
    keys, key, value = c.linear_num_key_heads, c.linear_key_head_dim, c.linear_value_head_dim
    return np.concatenate(
        [
            _own(keys, key, rank, ranks),
            _own(keys, key, rank, ranks, keys * key),
            _own(c.linear_num_value_heads, value, rank, ranks, 2 * keys * key),
        ]
    )


def held(name: str, c: ModelConfig, rank: int, ranks: int) -> Held | None:
    """What a rank holds of a tensor; None for all of it."""
    values = _own(c.linear_num_value_heads, c.linear_value_head_dim, rank, ranks)
    heads, gates = c.num_attention_heads, _own(c.linear_num_value_heads, 1, rank, ranks)
    features, ids = (_own(n, 1, rank, ranks) for n in (c.intermediate_size, c.vocab_size))
    table: dict[str, Held] = {
        "embed_tokens": (0, ids),
        "lm_head": (0, ids),
        "q_proj": (0, _own(heads, 2 * c.head_dim, rank, ranks)),
        "k_proj": (0, _kv(c, rank, ranks)),
        "v_proj": (0, _kv(c, rank, ranks)),
        "o_proj": (1, _own(heads, c.head_dim, rank, ranks)),
        "in_proj_qkv": (0, _qkv(c, rank, ranks)),
        "conv1d": (0, _qkv(c, rank, ranks)),
        "in_proj_z": (0, values),
        "out_proj": (1, values),
        "in_proj_b": (0, gates),
        "in_proj_a": (0, gates),
        "A_log": (0, gates),
        "dt_bias": (0, gates),
        "gate_proj": (0, features),
        "up_proj": (0, features),
        "down_proj": (1, features),
    }
    return table.get(name.removesuffix(".weight").rpartition(".")[2])


def part(tensor: HostTensor, of: Held | None) -> HostTensor:
    """That part of a host tensor, element by element."""
    if of is None:
        return tensor
    dim, indices = of
    if isinstance(tensor, np.ndarray):
        return np.take(tensor, indices, dim)
    if isinstance(tensor, DenseTensor):
        return DenseTensor(np.take(tensor.weight, indices, dim))
    if dim == 0:
        return replace(tensor, codes=tensor.codes[indices], scales=tensor.scales[indices])
    nibbles = np.stack([tensor.codes & 15, tensor.codes >> 4], -1)
    nibbles = nibbles.reshape(len(tensor.codes), -1)[:, indices]
    groups = indices[::16] // 16
    codes = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    return replace(tensor, codes=codes, scales=tensor.scales[:, groups])


def values(tensor: HostTensor) -> np.ndarray:
    """What a host tensor means, in float64."""
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float64)
    if isinstance(tensor, DenseTensor):
        return tensor.weight.astype(np.float64)
    nibbles = np.stack([tensor.codes & 15, tensor.codes >> 4], -1)
    nibbles = nibbles.reshape(len(tensor.codes), -1)
    magnitudes = E2M1[nibbles & 7].astype(np.float64) * np.where(nibbles & 8, -1.0, 1.0)
    exponent, mantissa = (tensor.scales >> 3).astype(int), (tensor.scales & 7) / 8
    scales = np.where(exponent > 0, 2.0 ** (exponent - 7) * (1 + mantissa), 2.0**-6 * mantissa)
    return magnitudes * np.repeat(scales, 16, axis=1) * np.float64(tensor.global_scale)


def random_host_tensors(
    config: ModelConfig, rng: np.random.Generator, quantised: bool
) -> dict[str, HostTensor]:
    """Every tensor of a model; with `quantised` the linears of layers are NVFP4 where K is whole scale groups."""
    tensors: dict[str, HostTensor] = {}
    for name, spec in tensor_specs(config).items():
        dense = rng.standard_normal(spec.shape, np.float32)
        if spec.kind != "linear":
            tensors[name] = dense
        elif (
            not quantised
            or spec.shape[1] % 16
            or name.endswith(("in_proj_a.weight", "in_proj_b.weight", "lm_head.weight"))
        ):
            tensors[name] = DenseTensor(dense)
        else:
            n, k = spec.shape
            codes = rng.integers(0, 256, (n, k // 2), np.uint8)
            scales = rng.integers(0x20, 0x48, (n, k // 16), np.uint8)
            tensors[name] = NVFP4Tensor(codes, scales, np.float32(rng.uniform(0.01, 0.1)))
    return tensors


def cut_for(
    tensors: Mapping[str, HostTensor], config: ModelConfig, rank: int, ranks: int
) -> dict[str, HostTensor]:
    """The whole model's tensors as one rank holds them."""
    return {name: part(t, held(name, config, rank, ranks)) for name, t in tensors.items()}


@st.composite
def split_models(draw: st.DrawFn) -> tuple[ModelConfig, int]:
    """A geometry and a number of ranks that divides it; key/value heads may be fewer than ranks."""
    ranks = draw(st.sampled_from([1, 2, 3, 4, 8]))
    heads = ranks * draw(st.integers(1, 3))
    fitting = [
        j for j in range(1, heads + 1) if heads % j == 0 and (j % ranks == 0 or ranks % j == 0)
    ]
    keys = ranks * draw(st.integers(1, 2))
    config = replace(
        SMALL,
        hidden_size=32,
        vocab_size=ranks * draw(st.integers(1, 5)),
        intermediate_size=ranks * draw(st.sampled_from([3, 8, 16, 32, 48])),
        num_attention_heads=heads,
        num_key_value_heads=draw(st.sampled_from(fitting)),
        head_dim=draw(st.sampled_from([8, 16, 32])),
        linear_num_key_heads=keys,
        linear_num_value_heads=keys * draw(st.integers(1, 3)),
        linear_key_head_dim=draw(st.sampled_from([4, 16])),
        linear_value_head_dim=draw(st.sampled_from([8, 16, 24])),
        tie_word_embeddings=draw(st.booleans()),
    )
    return config, ranks
