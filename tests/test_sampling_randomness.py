"""Random words.

Oracles: the Philox4x32-10 test vectors published with the algorithm, and the same rounds written in Python integers with
64-bit products. Not covered: the quality of the generator itself beyond moments.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onecat_jax.sampling.randomness import (
    STREAM_TARGET,
    gumbel,
    gumbel_noise,
    high_by_halves,
    philox,
    token_words,
    uniform,
    vocabulary_words,
)

ONES = 0xFFFFFFFF
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def reference_word(seed: int, position: int, stream: int, token: int) -> int:
    c = [position, stream, token >> 2, 0]
    k = [seed & ONES, seed >> 32]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & ONES, (p0 >> 32) ^ c[3] ^ k[1], p0 & ONES]
        k = [(k[0] + 0x9E3779B9) & ONES, (k[1] + 0xBB67AE85) & ONES]
    return c[token & 3]


def seed_rows(seeds: list[int]) -> jax.Array:
    return jnp.array([[s & ONES, s >> 32] for s in seeds], jnp.uint32)


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_philox_gives_the_published_vectors(counter, key, expected):
    words = philox(*(tuple(jnp.array([w], jnp.uint32) for w in part) for part in (counter, key)))
    assert tuple(int(w[0]) for w in words) == expected


def test_a_word_is_a_function_of_seed_position_stream_and_token():
    seeds, positions = [0, 7, 2**64 - 1, 0x0123456789ABCDEF], [0, 5, 262143, 99]
    for stream in (0, 1, 2):
        got = vocabulary_words(seed_rows(seeds), jnp.array(positions), stream, size=41)
        want = [
            [reference_word(s, p, stream, t) for t in range(41)]
            for s, p in zip(seeds, positions, strict=True)
        ]
        np.testing.assert_array_equal(np.asarray(got), np.array(want, np.uint32))


@pytest.mark.parametrize(("offset", "size"), [(0, 10), (1, 7), (2, 8), (3, 1), (64, 36), (97, 3)])
def test_a_vocabulary_slice_sees_the_words_of_the_whole(offset, size):
    seeds, positions = seed_rows([3, 2**40 + 1]), jnp.array([11, 12])
    whole = vocabulary_words(seeds, positions, STREAM_TARGET, size=100)
    part = jax.jit(
        lambda start: vocabulary_words(seeds, positions, STREAM_TARGET, size=size, offset=start)
    )(jnp.int32(offset))
    np.testing.assert_array_equal(whole[:, offset : offset + size], part)


def test_chosen_ids_see_the_words_of_the_whole_in_any_order():
    seeds, positions = seed_rows([3, 9]), jnp.array([11, 0])
    whole = np.asarray(vocabulary_words(seeds, positions, STREAM_TARGET, size=100))
    ids = np.stack([np.random.default_rng(i).permutation(100)[:33] for i in range(2)])
    got = token_words(seeds, positions, jnp.asarray(ids), STREAM_TARGET)
    np.testing.assert_array_equal(np.asarray(got), np.take_along_axis(whole, ids, axis=1))


def test_uniform_stays_inside_the_open_interval_and_resolves_small_values():
    words = jnp.array([0, 1, 2, ONES - 1, ONES], jnp.uint32)
    u = np.asarray(uniform(words))
    assert np.all(u > 0)
    assert np.all(u < 1)
    assert u[0] == 2.0**-33
    assert u[1] == 1.5 * 2.0**-32
    assert u[2] == 2.5 * 2.0**-32


def test_gumbel_noise_is_finite_and_resolves_the_winning_tail():
    g = np.asarray(gumbel(jnp.array([0, 1, 1000, ONES], jnp.uint32)))
    assert np.all(np.isfinite(g))
    assert g[0] == pytest.approx(33 * np.log(2), rel=1e-6)
    assert g[0] > g[1] > g[2] > g[3]


def test_gumbel_noise_agrees_with_float64_of_the_same_uniform():
    words = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint32)
    u = np.asarray(uniform(jnp.asarray(words))).astype(np.float64)
    np.testing.assert_allclose(
        gumbel(jnp.asarray(words)), -np.log(-np.log1p(-u)), rtol=2e-6, atol=2e-6
    )


def test_gumbel_noise_has_the_moments_of_the_distribution():
    noise = np.asarray(
        gumbel_noise(seed_rows(list(range(64))), jnp.arange(64), STREAM_TARGET, size=4096)
    )
    error = 4 / np.sqrt(noise.size)
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=error * 1.29)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=error * 4)


def test_both_ways_to_multiply_give_the_same_high_words():
    words = np.random.default_rng(5).integers(0, 2**32, 20_000, dtype=np.uint32)
    words = np.concatenate([words, np.array([0, 1, 0xFFFF, 0x10000, 0xFFFFFFFF], np.uint32)])
    for multiplier in (0xD2511F53, 0xCD9E8D57, 0xFFFFFFFF, 1):
        exact = (words.astype(object) * multiplier) // 2**32
        found = high_by_halves(jnp.asarray(words), jnp.uint32(multiplier))
        assert np.array_equal(np.asarray(found), exact.astype(np.uint32))
