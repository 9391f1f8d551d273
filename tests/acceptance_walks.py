"""Small random problems for the acceptance of drafts, with their exact laws and one statistic that judges what was emitted.

A problem: target logits that depend on the row and on the token fed at it, and a drafter that walks through four candidates per
place, scored given the candidate before. Laws come from `sampling_oracle` in float64; nothing here calls the code under test.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import sampling_oracle as oracle
from jax import Array
from scipy import stats

from onecat_jax.sampling import STREAM_DRAFT, Drafts, SamplingState, request_row, stack_rows
from onecat_jax.sampling.randomness import gumbel, token_words
from onecat_jax.sampling_params import SamplingParams

POSITION = 40  # of the bonus token
BONUS = 3
CANDIDATES = 4
PADDING = 2  # ids at the end that the model doesn't have
BANNED = 5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tables:
    """What a program needs of a problem, as arrays."""

    logits: Array  # [Q, V, V] float32 by row and token fed
    ids: Array  # [K, U] int32
    scores: Array  # [K, U, U] float32 by place, candidate before and candidate
    counts: Array  # [1, V] int32 token history
    allowed: Array  # [Q, V] bool


@dataclass(frozen=True)
class Problem:
    """One set of tables and settings."""

    seed: int
    drafts: int = 3
    size: int = 20
    settings: dict = field(default_factory=dict)
    proposal: str = "walk"  # "walk" draws, "point" takes the likeliest candidate
    draft_temperature: float = 1.0
    grammar: bool = False
    prompt_length: int = POSITION  # one more makes the bonus token the prompt's last

    @cached_property
    def params(self) -> SamplingParams:
        return SamplingParams(**self.settings)

    @cached_property
    def tables(self) -> Tables:
        rng = np.random.default_rng(self.seed)
        k, v = self.drafts, self.size
        logits = rng.normal(size=(k + 1, v, v))
        real = np.setdiff1d(np.arange(v - PADDING), [BANNED])
        ids = np.stack([rng.permutation(real)[:CANDIDATES] for _ in range(k)])
        logits[np.arange(k)[:, None], :, ids] += 3.0  # drafts that often agree
        ids[1, 0] = BANNED  # is proposed and never accepted
        counts = rng.integers(0, 3, (1, v)) * 2 + rng.integers(0, 2, (1, v))
        allowed = rng.random((k + 1, v)) < (0.6 if self.grammar else 1.1)
        return Tables(
            logits=jnp.asarray(logits, jnp.float32),
            ids=jnp.asarray(ids, jnp.int32),
            scores=jnp.asarray(rng.normal(size=(k, CANDIDATES, CANDIDATES)) * 0.8, jnp.float32),
            counts=jnp.asarray(counts, jnp.int32),
            allowed=jnp.asarray(allowed),
        )

    @property
    def remembers(self) -> bool:
        """Whether a law depends on more than the last token."""
        p = self.params
        return bool(p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1)

    def law(self, prefix: tuple[int, ...]) -> np.ndarray:
        """Target distribution, float64 [V], after the bonus token and these tokens."""
        row, p = len(prefix), self.params
        fed = (BONUS, *prefix)
        counts = np.asarray(self.tables.counts[0])
        generated, in_prompt = counts // 2, counts % 2 > 0
        for step, token in enumerate(fed):
            if POSITION + step < self.prompt_length:
                in_prompt[token] = True
            else:
                generated[token] += 1
        x = oracle.penalise(
            np.asarray(self.tables.logits[row, fed[-1]]), generated, in_prompt,
            presence=p.presence_penalty, frequency=p.frequency_penalty,
            repetition=p.repetition_penalty,
        )  # fmt: skip
        x = oracle.bias(x, dict(p.biases))
        forbidden = {BANNED, *range(self.size - PADDING, self.size)}
        x = oracle.remove(x, forbidden | set(np.flatnonzero(~self.tables.allowed[row])))
        cut = oracle.truncated(x, t=p.temperature, minimum=p.min_p, k=p.top_k, p=p.top_p)
        assert not cut.close, "choose another seed: float32 may decide this row otherwise"
        return oracle.probabilities(cut.x)

    def proposal_law(self, place: int, before: int) -> np.ndarray:
        """Probabilities [U] of the candidates at a place, given the candidate before."""
        scores = np.asarray(self.tables.scores[place, before], np.float64)
        if self.proposal == "point":
            return np.eye(CANDIDATES)[scores.argmax()]
        return oracle.probabilities(scores / self.draft_temperature)

    def mean_accepted(self, prefix: tuple[int, ...] = (), before: int = 0) -> float:
        """Expected number of accepted drafts: the sum over paths of the product of min(p, q)."""
        known: dict = {}

        def rest(prefix: tuple[int, ...], before: int) -> float:
            place = len(prefix)
            if place == self.drafts:
                return 0.0
            key = prefix if self.remembers else (place, before)
            if key not in known:
                p, q = self.law(prefix), self.proposal_law(place, before)
                total = 0.0
                for c, token in enumerate(np.asarray(self.tables.ids[place]).tolist()):
                    both = min(p[token], q[c])
                    if both > 0:
                        total += both * (1 + rest((*prefix, token), c))
                known[key] = total
            return known[key]

        return rest(prefix, before)


def states(problem: Problem, count: int, first_seed: int) -> SamplingState:
    """Rows that differ in their seed only, with room for four biases and one stop id: more take too much memory here."""
    row = stack_rows([request_row(problem.params, (), seed=0, prompt_length=problem.prompt_length)])
    row = replace(
        row,
        bias_ids=row.bias_ids[:, :4],
        bias_values=row.bias_values[:, :4],
        stop_ids=row.stop_ids[:, :1],
    )
    full = jax.tree.map(lambda leaf: jnp.repeat(leaf, count, axis=0), row)
    low = jnp.arange(first_seed, first_seed + count, dtype=jnp.uint32)
    return replace(full, seed=jnp.stack([low, jnp.full(count, 29, jnp.uint32)], axis=-1))


Walk = Callable[[Tables, Array, Array], Drafts]


def walk(tables: Tables, seed: Array, temperature: Array) -> Drafts:
    """Draws drafts along the lattice with Gumbel noise and reports the rows they were drawn from."""
    return walk_with(tables, seed, temperature, temperature)


def walk_with(tables: Tables, seed: Array, drawn_at: Array, reported_at: Array) -> Drafts:
    """The walk with separate temperatures of the draw and of the report; they must be equal."""
    batch = seed.shape[0]
    before = jnp.zeros(batch, jnp.int32)
    position = jnp.full(batch, POSITION + 1, jnp.int32)
    tokens, log_q = [], []
    for place in range(tables.ids.shape[0]):
        ids = jnp.broadcast_to(tables.ids[place], (batch, CANDIDATES))
        scores = tables.scores[place][before]
        noise = gumbel(token_words(seed, position + place, ids, STREAM_DRAFT))
        before = jnp.argmax(scores / drawn_at + noise, axis=-1)
        tokens.append(tables.ids[place][before])
        log_q.append(jax.nn.log_softmax(scores / reported_at, axis=-1))
    return _drafts(tables, tokens, jnp.stack(log_q, axis=1))


def point_walk(tables: Tables, seed: Array, temperature: Array) -> Drafts:
    """Takes the likeliest candidate at every place: point masses."""
    del temperature
    batch = seed.shape[0]
    before, tokens, log_q = jnp.zeros(batch, jnp.int32), [], []
    for place in range(tables.ids.shape[0]):
        before = jnp.argmax(tables.scores[place][before], axis=-1)
        tokens.append(tables.ids[place][before])
        log_q.append(jnp.log(jax.nn.one_hot(before, CANDIDATES)))
    return _drafts(tables, tokens, jnp.stack(log_q, axis=1))


def _drafts(tables: Tables, tokens: list[Array], log_q: Array) -> Drafts:
    ids = jnp.broadcast_to(tables.ids, log_q.shape)
    count = jnp.full(log_q.shape[0], log_q.shape[1], jnp.int32)
    return Drafts(jnp.stack(tokens, axis=1), ids, log_q, count)


@dataclass(frozen=True)
class Emitted:
    """What rounds emitted."""

    tokens: np.ndarray  # [N, Q] int, the first count + 1 mean something
    count: np.ndarray  # [N] int, accepted drafts


def p_values(problem: Problem, emitted: Emitted) -> dict[str, float]:
    """One p-value per place of a round, given what was emitted before it, and one for the mean number of accepted drafts."""
    found = {
        f"token {place}": _place_p_value(problem, emitted, place)
        for place in range(problem.drafts + 1)
    }
    error = emitted.count.std() / np.sqrt(emitted.count.size)
    off = abs(emitted.count.mean() - problem.mean_accepted())
    found["accepted"] = 2 * stats.norm.sf(off / max(error, 1e-9))
    return found


def _place_p_value(problem: Problem, emitted: Emitted, place: int) -> float:
    rows = emitted.tokens[emitted.count >= place, : place + 1]
    total, cells = 0.0, 0
    for prefix, counts in _groups(problem, rows):
        p = problem.law(prefix)
        if counts[p == 0].any():
            return 0.0
        seen, expected = _merged(counts, p * counts.sum())
        total += np.sum((seen - expected) ** 2 / expected)
        cells += seen.size - 1
    return float(stats.chi2.sf(total, cells)) if cells else 1.0


def _groups(problem: Problem, rows: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Rows with the same law at their last place: a prefix of each, and how often each token followed."""
    place = rows.shape[1] - 1
    first = 0 if problem.remembers else max(place - 1, 0)
    digits = [problem.size] * (place + 1 - first)
    code = np.ravel_multi_index(tuple(rows[:, first:].T), digits)
    table = np.bincount(code, minlength=np.prod(digits)).reshape(-1, problem.size)
    for key in np.flatnonzero(table.any(axis=1)):
        prefix = np.unravel_index(key, digits[:-1]) if place > first else ()
        yield (*(0,) * first, *(int(token) for token in prefix)), table[key]


def _merged(seen: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cells with less than five expected become one; a rest that stays below five joins the largest."""
    small = expected < 5
    s, e = seen[~small].astype(float), expected[~small]
    rest_seen, rest = seen[small].sum(), expected[small].sum()
    if rest >= 5 or not e.size:
        return np.append(s, rest_seen), np.append(e, rest)
    s[e.argmax()] += rest_seen
    e[e.argmax()] += rest
    return s, e
