"""Counter-based random words: nothing depends on batch row, slot, rank or call order.

The 32-bit word of (request seed, position, stream, token id) is a pure function of those four, computed by Philox4x32 with
10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011):

    key     = (seed low, seed high)
    counter = (position, stream, token id >> 2, 0)
    word    = output[token id & 3]

One block therefore serves four neighbouring ids, and a slice of the vocabulary sees the very words of the whole. Draws that
aren't tied to a token (the acceptance test of speculative decoding) use id 0 of their own stream.

`position` is the absolute position of the token being predicted, 0 for the first token of the prompt.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

STREAM_DRAFT = 0
STREAM_ACCEPT = 1
STREAM_TARGET = 2

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LANES = 4
_BELOW_ONE = 1.0 - 2.0**-24

Block = tuple[Array, Array, Array, Array]


def philox(counter: Block, key: tuple[Array, Array]) -> Block:
    """Philox4x32-10. All words uint32 of any broadcastable shapes."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1 = (jnp.uint32(m) for m in _MULTIPLIERS)
    s0, s1 = (jnp.uint32(s) for s in _KEY_STEPS)
    for _ in range(_ROUNDS):
        high0, high1 = _high(c0, m0), _high(c2, m1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, c2 * m1, high0 ^ c3 ^ k1, c0 * m0
        k0, k1 = k0 + s0, k1 + s1
    return c0, c1, c2, c3


def _high(x: Array, multiplier: Array) -> Array:
    """High 32 bits of the 64-bit product.

    The partitioner of jax 0.10 refuses the instruction for it ("Unable to convert MHLO to StableHLO"), so a program over
    several ranks multiplies 16-bit halves: twice the time, the same bits.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        return high_by_halves(x, multiplier)
    return lax.mulhi(x, jnp.broadcast_to(multiplier, x.shape))


def high_by_halves(x: Array, multiplier: Array) -> Array:
    """High 32 bits of the product of uint32 x and uint32 multiplier, schoolbook multiplication of 16-bit digits."""
    x_low, x_high = x & 0xFFFF, x >> 16
    m_low, m_high = multiplier & 0xFFFF, multiplier >> 16
    first = x_high * m_low + (x_low * m_low >> 16)  # at most 2^32 - 2^17 + 1 + 2^16: no overflow
    second = x_low * m_high + (first & 0xFFFF)
    return x_high * m_high + (first >> 16) + (second >> 16)


def token_words(seed: Array, position: Array, token_ids: Array, stream: int) -> Array:
    """Words of chosen token ids: seed uint32 [B, 2], position [B], token_ids [B, K] -> uint32 [B, K]."""
    ids = token_ids.astype(jnp.uint32)
    lanes = _blocks(seed, position, ids >> 2, stream)
    lane = ids & 3
    return lax.select_n(lane.astype(jnp.int32), *lanes)


def vocabulary_words(
    seed: Array, position: Array, stream: int, *, size: int, offset: int | Array = 0
) -> Array:
    """Words of the ids offset .. offset + size - 1.

    Args:
      seed: uint32 [B, 2], low word first.
      position: integer [B].
      size: number of ids, static.
      offset: first id, a Python int or an int32 scalar (the shard of a split vocabulary).
    Returns:
      uint32 [B, size].
    """
    first = jnp.asarray(offset, jnp.uint32)
    count = size // _LANES + 2
    blocks = (first >> 2) + jnp.arange(count, dtype=jnp.uint32)
    lanes = _blocks(seed, position, blocks[None], stream)
    words = jnp.stack(lanes, axis=-1).reshape(lanes[0].shape[0], count * _LANES)
    return lax.dynamic_slice_in_dim(words, (first & 3).astype(jnp.int32), size, axis=1)


def _blocks(seed: Array, position: Array, block: Array, stream: int) -> Block:
    """Philox blocks of [B, K] block numbers (or [1, K], shared by all rows)."""
    shape = jnp.broadcast_shapes((position.shape[0], 1), block.shape)
    column = jnp.broadcast_to(position.astype(jnp.uint32)[:, None], shape)
    counter = (
        column,
        jnp.full(shape, stream, jnp.uint32),
        jnp.broadcast_to(block, shape),
        jnp.zeros(shape, jnp.uint32),
    )
    return philox(counter, (seed[:, :1], seed[:, 1:]))


def uniform(words: Array) -> Array:
    """Float32 in (0, 1): (word + 1/2) / 2**32, all 32 bits kept towards 0, never rounded up to 1."""
    value = (words.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    return jnp.minimum(value, jnp.float32(_BELOW_ONE))


def gumbel(words: Array) -> Array:
    """Standard Gumbel noise, float32: -log(-log(1 - u)).

    Large values, which decide the winner, come from small u, where `uniform` resolves 2**-33; they reach 22.9.
    """
    return -jnp.log(-jnp.log1p(-uniform(words)))


def gumbel_noise(
    seed: Array, position: Array, stream: int, *, size: int, offset: int | Array = 0
) -> Array:
    """Gumbel noise of a slice of the vocabulary, float32 [B, size]; arguments as in `vocabulary_words`."""
    with jax.named_scope("gumbel_noise"):
        return gumbel(vocabulary_words(seed, position, stream, size=size, offset=offset))
