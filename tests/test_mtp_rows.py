"""Rows of the multi-token-prediction head equal the equations, however they are cut and split.

Oracle: mtp_oracle (NumPy, float64, one row at a time). Covered: one and two layers, chunks, single rows, several rows of a
round, ranks, FP16 and float8 caches (looser), poison in unused memory, a checkpoint without a head. Not covered: real weights.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import mtp_oracle
import numpy as np
import pytest
from checkpoints import SMALL, TIED, random_tensors, tensor_specs
from jax.sharding import PartitionSpec as P

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import DenseTensor, LinearRoute
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.custom_calls.rows import LiveRows
from onecat_jax.device_state import empty_state
from onecat_jax.errors import CheckpointError
from onecat_jax.models.qwen3_5 import ForwardOptions, ModelConfig, Params, build_params
from onecat_jax.models.qwen3_5.forward import embed
from onecat_jax.models.qwen3_5.layers import rotary_angles
from onecat_jax.models.qwen3_5.mtp import mtp_rows
from onecat_jax.models.qwen3_5.specs import param_specs
from onecat_jax.sharding import TP, Placement
from onecat_jax.state import CacheState

PAGE, PAGES = 8, 12
LENGTH = 40
FOUR = replace(SMALL, linear_num_key_heads=4)  # divides by four; two key/value heads are repeated
TWO = replace(TIED, mtp_num_hidden_layers=2)
PLAIN = Policy("plain")


def build(config: ModelConfig, policy: Policy, ranks: int, dtype: str = "float32") -> Params:
    tensors = {
        name: DenseTensor(value) if tensor_specs(config)[name].kind == "linear" else value
        for name, value in random_tensors(config).items()
    }
    return build_params(
        tensors,
        config,
        route=LinearRoute(policy, separate=policy.backend == "plain"),
        dtype=dtype,
        loops="none" if policy.backend == "plain" else "layers",
        placement=Placement.of(ranks),
        mtp=True,
    )


@dataclass(frozen=True)
class Model:
    """A head with a cache. Row 0 of a batch is the sequence, row 1 is empty."""

    config: ModelConfig = SMALL
    policy: Policy = Policy()
    ranks: int = 1
    dtype: str = "float32"
    kv_dtype: str = "float32"

    @cached_property
    def params(self) -> Params:
        return build(self.config, self.policy, self.ranks, self.dtype)

    def state(self, poison: float = np.nan) -> CacheState:
        options = ForwardOptions(
            self.config, self.dtype, self.policy, Placement.of(self.ranks).shards
        )
        shape = options.local.cache_shape(pages=PAGES, page_size=PAGE, slots=2, mtp=True)
        dtype = jnp.dtype(self.kv_dtype)
        state = empty_state(
            Placement.of(self.ranks), shape, kv_dtype=dtype, window_dtype=jnp.float32
        )
        kv = jax.tree.map(lambda a: a + jnp.asarray(poison, a.dtype), state.kv)
        return replace(state, kv=kv)

    @cached_property
    def step(self):
        placement = Placement.of(self.ranks)
        options = ForwardOptions(self.config, self.dtype, self.policy, placement.shards)
        state = jax.eval_shape(self.state).specs(TP)
        steps = {}
        for turn in range(self.config.mtp_num_hidden_layers):
            mapped = placement.shard_map(
                partial(rows_of, options=options, turn=turn),
                in_specs=(param_specs(self.params), state, P(), P(), P(), P()),
                out_specs=(P(), state),
            )
            steps[turn] = jax.jit(mapped, donate_argnums=1)
        return steps

    def run(self, state, tokens, hidden, start, width=None, turn=0):
        """Rows at positions start.. -> outputs [n, E] and the state."""
        count, width = len(tokens), width or len(tokens)
        padded = np.zeros((2, width), np.int32)
        padded[0, :count] = tokens
        rows = np.zeros((2, width, self.config.hidden_size), np.float32)
        rows[0, :count] = hidden
        out, state = self.step[turn](
            self.params, state, padded, rows, np.int32([start, 0]), np.int32([count, 0])
        )
        return np.asarray(out[0, :count]), state


def rows_of(params, state, tokens, hidden, start, count, *, options, turn):
    """As a drafter calls the head: pages of the table are in reverse order."""
    offset = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    config = options.config
    table = jnp.stack([jnp.arange(PAGES - 1, 0, -1), jnp.zeros(PAGES - 1, int)]).astype(jnp.int32)
    rows = AttentionRows(table, start, count, LiveRows.of(count))
    rotary = rotary_angles(start[:, None] + offset, config.rotary_dim, config.rope_theta)
    embedded = embed(params.embed, tokens, offset < count[:, None], options.shards)
    out, kv = mtp_rows(params.mtp, embedded, hidden, state.kv, rows, rotary, options, turn)
    return out, replace(state, kv=kv)


def sequence(config: ModelConfig, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, LENGTH)
    return tokens, rng.standard_normal((LENGTH, config.hidden_size)).astype(np.float32)


def expected_rows(config: ModelConfig, turns=lambda position: 0) -> np.ndarray:
    tokens, hidden = sequence(config)
    head = mtp_oracle.Head(random_tensors(config), config)
    rows = [head.row(tokens[p], hidden[p], p, turns(p)) for p in range(LENGTH)]
    return np.stack(rows)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("policy", [Policy(), PLAIN], ids=["handlers", "plain"])
def test_rows_equal_the_equations_on_any_number_of_ranks(policy, ranks):
    model = Model(FOUR, policy, ranks)
    tokens, hidden = sequence(FOUR)
    found, _ = model.run(model.state(), tokens, hidden, 0, 64)
    np.testing.assert_allclose(found, expected_rows(FOUR), atol=3e-5)


@pytest.mark.parametrize("policy", [Policy(), PLAIN], ids=["handlers", "plain"])
def test_chunks_and_single_rows_give_what_the_whole_gives(policy):
    model = Model(TIED, policy)
    tokens, hidden = sequence(TIED)
    state, found = model.state(), []
    for start, stop in ((0, 17), (17, 18), (18, 26), (26, 27), (27, LENGTH)):
        width = 1 if stop - start == 1 else 32
        out, state = model.run(state, tokens[start:stop], hidden[start:stop], start, width)
        found.append(out)
    np.testing.assert_allclose(np.concatenate(found), expected_rows(TIED), atol=3e-5)


def test_rows_of_a_round_are_the_bits_of_rows_one_by_one():
    model = Model(SMALL)
    tokens, hidden = sequence(SMALL)
    _, one = model.run(model.state(), tokens[:20], hidden[:20], 0, 32)
    _, many = model.run(model.state(0.0), tokens[:20], hidden[:20], 0, 32)
    singly = []
    for p in range(20, 28):
        out, one = model.run(one, tokens[p : p + 1], hidden[p : p + 1], p)
        singly.append(out)
    together, _ = model.run(many, tokens[20:28], hidden[20:28], 20)
    np.testing.assert_array_equal(np.concatenate(singly), together)


def test_rows_that_are_written_again_leave_no_trace():
    model = Model(SMALL)
    tokens, hidden = sequence(SMALL)
    _, state = model.run(model.state(), tokens[:20], hidden[:20], 0, 32)
    _, state = model.run(state, tokens[:4], hidden[:4], 20)  # drafts that were refused
    found, _ = model.run(state, tokens[20:22], hidden[20:22], 20)
    np.testing.assert_allclose(found, expected_rows(SMALL)[20:22], atol=3e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_layers_take_turns_and_none_has_holes(ranks):
    model = Model(TWO, ranks=ranks)
    tokens, hidden = sequence(TWO)
    first, state = model.run(model.state(), tokens[:30], hidden[:30], 0, 32)
    found = [first]
    for p in range(30, LENGTH):
        out, state = model.run(state, tokens[p : p + 1], hidden[p : p + 1], p, turn=p % 2)
        found.append(out)
    expected = expected_rows(TWO, lambda p: p % 2 if p >= 30 else 0)
    np.testing.assert_allclose(np.concatenate(found), expected, atol=3e-5)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "tolerance"),
    [
        ("float16", "float16", 2e-2),
        ("float32", "float8_e4m3fn", 0.3),
        ("float16", "float8_e5m2", 0.6),
    ],
)
def test_narrow_numbers_stay_near(dtype, kv_dtype, tolerance):
    model = Model(SMALL, dtype=dtype, kv_dtype=kv_dtype)
    tokens, hidden = sequence(SMALL)
    found, _ = model.run(model.state(0.0), tokens, hidden, 0, 64)
    expected = expected_rows(SMALL)
    assert np.abs(found - expected).max() < tolerance
    assert np.abs(found - expected).mean() < tolerance / 5


def test_the_target_is_built_without_the_head_unless_asked():
    tensors = {
        name: DenseTensor(value) if tensor_specs(SMALL)[name].kind == "linear" else value
        for name, value in random_tensors(SMALL).items()
    }
    build = partial(
        build_params, config=SMALL, route=LinearRoute(Policy()), dtype="float32", loops="layers"
    )
    assert build(tensors).mtp is None
    without = {name: value for name, value in tensors.items() if not name.startswith("mtp.")}
    with pytest.raises(CheckpointError, match=r"no MTP head .*0 tensors under mtp\."):
        build(without, mtp=True)


def test_specs_of_the_head_are_those_of_the_placed_arrays():
    params = Model(SMALL, ranks=2).params
    assert jax.tree.map(lambda a: a.sharding.spec, params) == param_specs(params)


def test_the_cache_has_room_for_the_head_when_asked():
    sizes = {"pages": 3, "page_size": 8, "slots": 2}
    assert TWO.cache_shape(**sizes).attention_layers == 1
    assert TWO.cache_shape(**sizes, mtp=True).attention_layers == 3
