"""The MTP drafter proposes the chain that the equations give, whatever it was told before and whoever is beside it.

Oracle: mtp_oracle (NumPy, float64) over the committed sequence, its chain continued by hand; q by a float64 softmax of the 64
likeliest; draws by the words of `sampling.randomness`, which have tests of their own. Hidden rows of the target are random: the
head doesn't care. Covered: greedy and sampled chains, refused drafts, chunks, ranks, neighbours, banned ids, the first token,
two layers. Not covered: acceptance rates of real weights.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import jax
import jax.numpy as jnp
import mtp_oracle
import numpy as np
import pytest
from checkpoints import SMALL, TIED, random_tensors, tensor_specs
from jax.sharding import PartitionSpec as P

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import DenseTensor, LinearRoute
from onecat_jax.device_state import empty_state
from onecat_jax.models.qwen3_5 import ForwardOptions, ModelConfig, build_params
from onecat_jax.sampling import STREAM_DRAFT, request_row, stack_rows
from onecat_jax.sampling.randomness import gumbel, token_words
from onecat_jax.sampling_params import SamplingParams
from onecat_jax.sharding import TP, Placement
from onecat_jax.speculation.interface import Committed, DraftRows
from onecat_jax.speculation.mtp import MTPDrafter
from onecat_jax.speculation.params import EngineParams, engine_specs
from onecat_jax.state import DraftShape

PAGE, PAGES, SLOTS, LENGTH = 8, 13, 3, 40
TWO = replace(TIED, mtp_num_hidden_layers=2)
BANNED = 7


@dataclass(frozen=True)
class Engine:
    """A drafter and its state, without an engine. Two batch rows, each with a slot and half of the pages."""

    config: ModelConfig = SMALL
    drafts: int = 4
    ranks: int = 1
    policy: Policy = Policy()
    greedy: bool = False
    placement: Placement = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "placement", Placement.of(self.ranks))

    @cached_property
    def options(self) -> ForwardOptions:
        return ForwardOptions(self.config, "float32", self.policy, self.placement.shards)

    @cached_property
    def drafter(self) -> MTPDrafter:
        return MTPDrafter(self.options, self.config.vocab_size - 2, self.drafts, self.greedy)

    @cached_property
    def params(self) -> EngineParams:
        plain = self.policy.backend == "plain"
        tensors = {
            name: DenseTensor(value) if tensor_specs(self.config)[name].kind == "linear" else value
            for name, value in random_tensors(self.config).items()
        }
        return EngineParams(
            build_params(
                tensors,
                self.config,
                route=LinearRoute(self.policy, separate=plain),
                dtype="float32",
                loops="none" if plain else "layers",
                placement=self.placement,
                mtp=True,
            )
        )

    def state(self):
        shape = self.options.local.cache_shape(pages=PAGES, page_size=PAGE, slots=SLOTS, mtp=True)
        draft = DraftShape(hidden=self.config.hidden_size)
        dtypes = {"kv_dtype": jnp.float32, "window_dtype": jnp.float32}
        state = empty_state(self.placement, shape, **dtypes, draft=draft)
        return jax.tree.map(
            lambda a: a + jnp.asarray(np.nan, a.dtype) if a.dtype == jnp.float32 else a, state
        )

    @cached_property
    def _draft(self):
        state = jax.eval_shape(self.state).specs(TP)
        mapped = self.placement.shard_map(
            self.drafter.draft,
            in_specs=(engine_specs(self.params), state, P(), P(), P(TP)),
            out_specs=(P(), state),
        )
        return jax.jit(mapped, donate_argnums=1)

    @cached_property
    def _commit(self):
        state = jax.eval_shape(self.state).specs(TP)
        mapped = self.placement.shard_map(
            self.drafter.commit,
            in_specs=(engine_specs(self.params), state, P()),
            out_specs=state,
        )
        return jax.jit(mapped, donate_argnums=1)

    def commit(self, state, sequence, start, stop, row=0, width=None, extra=0):
        """Rows start..stop of a sequence; `extra` rows behind them were refused."""
        n = stop - start
        width = max(width or n, n + extra)
        tokens, after = np.zeros((2, 2, width), np.int32)
        hidden = np.full((2, width, self.config.hidden_size), np.nan, np.float32)
        tokens[row, :n], after[row, :n] = sequence.tokens[start:stop], sequence.after[start:stop]
        hidden[row, :n] = sequence.hidden[start:stop]
        at = Committed(
            tokens, after, hidden, None, pair(row, start), pair(row, n), slots(row), table(row)
        )
        return self._commit(self.params, state, at)

    def draft(self, state, tokens, position, wanted, sampling):
        """Both batch rows at once: lists of two."""
        rows = DraftRows(*map(np.int32, (tokens, position, wanted, [2, 1])), table())
        banned = np.zeros(self.config.vocab_size, bool)
        banned[BANNED] = True
        drafts, state = self._draft(self.params, state, rows, sampling, banned)
        return jax.device_get(drafts), state


def pair(row: int, value: int) -> np.ndarray:
    """A value for one batch row, 0 for the other."""
    return np.int32([value if b == row else 0 for b in range(2)])


def slots(row: int) -> np.ndarray:
    return pair(row, 2 - row)


def table(row: int | None = None) -> np.ndarray:
    half = PAGES // 2
    pages = np.stack([np.arange(PAGES - 1, half, -1), np.arange(1, half + 1)]).astype(np.int32)
    return pages if row is None else pages * (np.arange(2) == row)[:, None].astype(np.int32)


class Sequence:
    """Tokens [n + 1] and hidden rows [n] as a target might give them."""

    def __init__(self, config: ModelConfig, seed: int):
        rng = np.random.default_rng(seed)
        all_tokens = rng.integers(0, config.vocab_size - 2, LENGTH + 1)
        self.tokens, self.after = all_tokens[:-1], all_tokens[1:]
        self.hidden = rng.standard_normal((LENGTH, config.hidden_size)).astype(np.float32)
        self.config = config

    def steps(self, length: int, chain: list[int]) -> list[np.ndarray]:
        """Logits [len(chain)] that each draft of a chain is picked from, `length` rows being committed."""
        head = mtp_oracle.Head(random_tensors(self.config), self.config)
        for p in range(length):
            out = head.row(self.after[p], self.hidden[p], p)
        found = [self._allowed(head.logits(out))]
        for step, token in enumerate(chain[:-1]):
            turn = (step + 1) % self.config.mtp_num_hidden_layers
            out = head.row(token, out, length + step, turn)
            found.append(self._allowed(head.logits(out)))
        return found

    def _allowed(self, x: np.ndarray) -> np.ndarray:
        x[[BANNED, -1, -2]] = -np.inf
        return x

    def greedy(self, length: int, count: int) -> list[int]:
        chain: list[int] = []
        for _ in range(count):
            chain.append(int(np.argmax(self.steps(length, [*chain, 0])[-1])))
        return chain


def settings(*temperatures: float):
    rows = [
        request_row(SamplingParams(temperature=t), (), seed=11 + i, prompt_length=4)
        for i, t in enumerate(temperatures)
    ]
    return stack_rows(rows)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def prefilled(engine: Engine, sequence: Sequence, length: int, state=None):
    state = engine.state() if state is None else state
    return engine.commit(state, sequence, 0, length, width=32)


@pytest.mark.parametrize(
    ("config", "ranks", "policy"),
    [(SMALL, 1, Policy()), (SMALL, 2, Policy()), (TIED, 1, Policy("plain")), (TWO, 1, Policy())],
    ids=["one rank", "two ranks", "plain", "two layers"],
)
def test_a_greedy_chain_is_that_of_the_equations(config, ranks, policy):
    engine, sequence = Engine(config, 5, ranks, policy), Sequence(config, 1)
    state = prefilled(engine, sequence, 20)
    drafts, _ = engine.draft(state, [sequence.tokens[20], 0], [20, 0], [5, 0], settings(0.0, 0.0))
    assert drafts.tokens[0].tolist() == sequence.greedy(20, 5)
    assert drafts.count.tolist() == [5, 0]
    mass = np.where(drafts.ids[0] == drafts.tokens[0][:, None], 0.0, -np.inf)
    np.testing.assert_array_equal(drafts.log_q[0], mass)


def test_sampled_drafts_follow_their_q_and_their_own_noise(engine):
    sequence, temperature = Sequence(SMALL, 2), 0.8
    state = prefilled(engine, sequence, 20)
    sampling = settings(temperature, 0.0)
    drafts, _ = engine.draft(state, [0, 0], [20, 0], [4, 0], sampling)
    chain = drafts.tokens[0].tolist()
    for step, logits in enumerate(sequence.steps(20, chain)):
        ids, log_q = drafts.ids[0, step], drafts.log_q[0, step]
        assert set(ids) == set(np.argsort(-logits)[:64])
        scaled = logits[ids] / temperature
        expected = scaled - np.log(np.exp(scaled - scaled.max()).sum()) - scaled.max()
        np.testing.assert_allclose(log_q, expected, atol=1e-4)
        words = token_words(sampling.seed[:1], jnp.asarray([21 + step]), ids[None], STREAM_DRAFT)
        assert chain[step] == ids[np.argmax(log_q + np.asarray(gumbel(words))[0])]


def test_a_greedy_drafter_proposes_point_masses_at_any_temperature():
    engine, sequence = Engine(greedy=True), Sequence(SMALL, 2)
    state = prefilled(engine, sequence, 20)
    drafts, _ = engine.draft(state, [0, 0], [20, 0], [4, 0], settings(0.8, 0.0))
    assert drafts.tokens[0].tolist() == sequence.greedy(20, 4)
    assert np.sort(drafts.log_q[0], axis=-1)[:, -1].tolist() == [0.0] * 4


def test_refused_drafts_leave_no_trace(engine):
    sequence = Sequence(SMALL, 3)
    state = prefilled(engine, sequence, 20)
    for length, accepted in ((20, 2), (22, 1), (23, 5)):
        _, state = engine.draft(state, [0, 0], [length, 0], [4, 0], settings(0.0, 0.0))
        state = engine.commit(state, sequence, length, length + accepted, width=5)
    drafts, _ = engine.draft(state, [0, 0], [28, 0], [4, 0], settings(0.0, 0.0))
    assert drafts.tokens[0].tolist() == sequence.greedy(28, 4)


def test_chunks_of_a_prompt_change_nothing(engine):
    sequence, found = Sequence(SMALL, 4), []
    for borders in ((0, 28), (0, 16, 28), (0, 16, 17, 28)):
        state = engine.state()
        for start, stop in pairwise(borders):
            state = engine.commit(state, sequence, start, stop, width=32)
        drafts, _ = engine.draft(state, [0, 0], [28, 0], [4, 0], settings(0.9, 0.0))
        found.append(drafts)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].tokens[0], other.tokens[0])
        np.testing.assert_allclose(found[0].log_q[0], other.log_q[0], atol=1e-5)


def test_a_neighbour_changes_no_bit(engine):
    mine, other = Sequence(SMALL, 5), Sequence(SMALL, 6)
    alone, _ = engine.draft(
        prefilled(engine, mine, 20), [0, 0], [20, 0], [4, 0], settings(0.9, 0.0)
    )
    state = engine.commit(prefilled(engine, mine, 20), other, 0, 9, row=1, width=32)
    both, _ = engine.draft(state, [0, 0], [20, 9], [4, 2], settings(0.9, 0.7))
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(both), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
    assert both.count.tolist() == [4, 2]


def test_a_row_drafts_as_many_as_wanted_and_the_first_token_has_none(engine):
    state = engine.state()
    drafts, _ = engine.draft(state, [3, 3], [0, 0], [4, 1], settings(0.0, 0.5))
    assert drafts.count.tolist() == [0, 0]
    state = prefilled(engine, Sequence(SMALL, 7), 1)
    for wanted in range(5):
        drafts, state = engine.draft(state, [0, 0], [1, 0], [wanted, 0], settings(0.0, 0.0))
        assert drafts.count.tolist() == [wanted, 0]


def test_a_chain_needs_a_link():
    with pytest.raises(ValueError, match="at least 1 draft, asked for 0"):
        MTPDrafter(Engine().options, 96, 0)
