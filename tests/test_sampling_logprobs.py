"""Log probabilities. Oracle: NumPy in float64 with the order value descending, id ascending."""

import jax
import jax.numpy as jnp
import numpy as np

from onecat_jax.sampling import logprobs

token_logprobs = jax.jit(logprobs.token_logprobs, static_argnames=("k", "vocab_size"))


def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = x.astype(np.float64)
    shifted = x - x.max(axis=1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    ids = np.broadcast_to(np.arange(x.shape[1]), x.shape)
    return logp, np.lexsort((ids, -x), axis=1)


def test_values_ids_and_ranks_agree_with_float64_ties_included():
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(64, 300)) * 3).astype(np.float32)
    tokens = rng.integers(0, 300, 64)
    logp, order = reference(x)
    chosen, top_ids, top, rank = token_logprobs(x, tokens, 20)
    rows = np.arange(64)
    np.testing.assert_allclose(chosen, logp[rows, tokens], atol=2e-5)
    np.testing.assert_array_equal(top_ids, order[:, :20])
    np.testing.assert_allclose(top, np.take_along_axis(logp, order[:, :20], 1), atol=2e-5)
    np.testing.assert_array_equal(rank, np.argmax(order == tokens[:, None], axis=1) + 1)


def test_padding_ids_hold_no_mass():
    x = np.random.default_rng(1).normal(size=(4, 50)).astype(np.float32)
    padded = np.concatenate([x, np.full((4, 6), 40, np.float32)], axis=1)
    tokens = np.arange(4)
    for got, want in zip(
        token_logprobs(padded, tokens, 5, vocab_size=50), token_logprobs(x, tokens, 5), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_no_alternatives_gives_empty_columns():
    chosen, ids, values, rank = token_logprobs(np.zeros((3, 7), np.float32), np.arange(3), 0)
    assert chosen.shape == (3,)
    assert ids.shape == (3, 0)
    assert values.shape == (3, 0)
    assert rank.tolist() == [1, 2, 3]


def test_a_row_has_the_same_bits_alone_and_in_a_batch():
    x = np.random.default_rng(2).normal(size=(8, 5000)).astype(np.float32)
    tokens = np.arange(8)
    together = token_logprobs(x, tokens, 5)
    for row in range(8):
        alone = token_logprobs(x[row : row + 1], tokens[row : row + 1], 5)
        for one, all_rows in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], all_rows[row])


def test_large_logits_stay_finite():
    chosen, *_ = token_logprobs(jnp.array([[3e38, 3e38, -3e38]]), jnp.array([0]), 1)
    np.testing.assert_allclose(chosen, np.log(0.5), rtol=1e-6)
