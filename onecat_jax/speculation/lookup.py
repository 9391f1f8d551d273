"""Looking a sequence's last tokens up in the sequence itself: what followed them before may follow again.

The text of a request is what its slot of `DraftState.tokens` holds below position L, and the bonus token at L.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.rows import row_of

_TILE = 4096  # ends of matches that are compared at a time on CPU, where the work follows the length of the text
_LANES = 32  # a maximum over a multiple of it is several times as fast on CPU
_NOTHING, _NO_SUFFIX = -1, -2  # no tokens, and unlike each other: what stands beside a text


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Text:
    """The texts of a batch."""

    tokens: Array  # [slots, N] int32 the tokens below `position` of each slot, then anything
    slots: Array  # [B] int32
    position: Array  # [B] int32 L, of the bonus token
    token: Array  # [B] int32 the bonus token, the last of the text


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Match:
    """An earlier occurrence of the end of each text."""

    length: Array  # [B] int32 tokens that are alike, 0 = there is none
    end: Array  # [B] int32 position of the last of them, below `position`


def record(tokens: Array, fed: Array, start: Array, count: Array, slots: Array) -> Array:
    """Tokens [slots, N] with the first `count` [B] of the rows `fed` [B, T] at positions from `start` [B] on, in place."""
    offset = jnp.arange(fed.shape[1], dtype=jnp.int32)
    width = tokens.shape[1]
    at = jnp.where(offset < count[:, None], start[:, None] + offset, width)
    return tokens.at[slots[:, None], at].set(fed, mode="drop")


def search(text: Text, live: Array, *, least: int, most: int) -> Match:
    """Where the end of each text occurred before: the longest match, of equally long ones the most recent.

    A match may overlap the end of the text, as in a text that repeats itself.

    Args:
      text: the texts.
      live: bool [B]; the others have no match.
      least: tokens that must be alike.
      most: tokens that are compared; longer matches count as equally long.
    """
    suffix = _suffix(text, most)
    scores = lax.platform_dependent(
        text, suffix, live, cpu=_Search(least, most).by_tiles, default=_Search(least, most).at_once
    )
    width = text.tokens.shape[1]
    found = live & (scores >= 0)
    return Match(jnp.where(found, scores // width, 0), jnp.where(found, scores % width, 0))


def follow(text: Text, match: Match, count: int) -> tuple[Array, Array]:
    """What followed a match: tokens [B, count] and how many of them the text holds, int32 [B]."""
    at = match.end[:, None] + 1 + jnp.arange(count, dtype=jnp.int32)
    inside = jnp.minimum(at, text.tokens.shape[1] - 1)
    tokens = text.tokens[text.slots[:, None], inside]
    tokens = jnp.where(at == text.position[:, None], text.token[:, None], tokens)
    valid = jnp.minimum(count, text.position - match.end)
    return tokens, jnp.where(match.length > 0, valid, 0)


def _suffix(text: Text, most: int) -> Array:
    """The last `most` tokens [B, most] of each text, backwards."""
    at = text.position[:, None] - jnp.arange(most, dtype=jnp.int32)
    tokens = text.tokens[text.slots[:, None], jnp.maximum(at, 0)]
    return jnp.where(at < 0, _NO_SUFFIX, tokens).at[:, 0].set(text.token)


@dataclass(frozen=True)
class _Search:
    """Scores int32 [B]: length * N + end of the best match, negative if there is none."""

    least: int
    most: int

    def at_once(self, text: Text, suffix: Array, live: Array) -> Array:
        """All positions of all rows in one pass."""
        return self._best(text.tokens[text.slots], 0, suffix, text.position, text.tokens.shape[1])

    def by_tiles(self, text: Text, suffix: Array, live: Array) -> Array:
        """Row by row, as far as each text goes. Tiles overlap, so that a match is whole in one of them."""
        width = text.tokens.shape[1]
        size = min(width, _TILE + self.most - 1)

        def row(b: Array, scores: Array) -> Array:
            slot, position = row_of(text.slots, b), row_of(text.position, b)

            def tile(i: Array, best: Array) -> Array:
                first = jnp.clip(i * _TILE - self.most + 1, 0, width - size)
                piece = lax.dynamic_slice(text.tokens, (slot, first), (1, size))[0]
                score = self._best(piece, first, row_of(suffix, b), position, width)
                return jnp.maximum(best, score)

            tiles = jnp.where(row_of(live, b), -(-position // _TILE), 0)
            return scores.at[b].set(lax.fori_loop(0, tiles, tile, jnp.int32(-1)))

        return lax.fori_loop(0, live.shape[0], row, jnp.full(live.shape, -1, jnp.int32))

    def _best(
        self, piece: Array, first: Array | int, suffix: Array, position: Array, width: int
    ) -> Array:
        """Of matches that end in a piece [..., n] of a text that starts at `first`."""
        size = -(-piece.shape[-1] // _LANES) * _LANES
        beside = [(0, 0)] * (piece.ndim - 1) + [(self.most - 1, size - piece.shape[-1])]
        padded = jnp.pad(piece, beside, constant_values=_NOTHING)
        alike = jnp.ones((*piece.shape[:-1], size), jnp.int32)
        length = jnp.zeros_like(alike)
        for back in range(self.most):
            at = self.most - 1 - back
            same = lax.slice_in_dim(padded, at, at + size, axis=-1) == suffix[..., back, None]
            alike &= same.astype(jnp.int32)
            length += alike
        end = first + lax.broadcasted_iota(jnp.int32, alike.shape, alike.ndim - 1)
        known = (length >= self.least) & (end < position[..., None])
        scores = jnp.where(known, length * width + end, -1)
        # As a loop of its own it is vectorised on CPU; merged into the one of the maximum it isn't.
        return jnp.max(lax.optimization_barrier(scores), axis=-1)
