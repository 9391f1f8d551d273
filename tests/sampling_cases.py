"""A thousand random cases for the transforms: ties, NaN and infinities, every setting at its ends and beyond the vocabulary."""

from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.sampling import SamplingState, SlotCounts, request_row, stack_rows
from onecat_jax.sampling_params import SamplingParams

# Smaller than the head of 64 tokens that is looked at first, one more than it, and much more. 1,000 cases in all.
COUNTS = {5: 350, 65: 350, 300: 300}
POSITION = 40  # of the token that is picked
EOS = 2
_HOLE = 0.97  # below it a fraction of the vocabulary ends


@dataclass(frozen=True)
class Case:
    """One row and its settings."""

    x: np.ndarray  # [V] float32
    params: SamplingParams
    prompt_length: int
    generated: np.ndarray  # [V] int
    in_prompt: np.ndarray  # [V] bool

    @property
    def early(self) -> bool:
        return self.prompt_length + self.params.min_tokens > POSITION


@dataclass(frozen=True)
class Batch:
    """All cases of one vocabulary size."""

    cases: tuple[Case, ...]
    logits: Array  # [B, V] float32
    state: SamplingState
    positions: Array  # [B] int32
    vocab_size: int
    banned: Array  # [V] bool
    history: SlotCounts

    @property
    def removed(self) -> set[int]:
        """Ids that no row may pick."""
        size = self.logits.shape[1]
        return set(np.flatnonzero(self.banned)) | set(range(self.vocab_size, size))


def _logits(rng: np.random.Generator, size: int, index: int) -> np.ndarray:
    x = rng.normal(scale=rng.choice([0.3, 2.0, 8.0]), size=size)
    if index % 2:
        x = np.round(x)  # many ties
    if index % 4 == 3:
        spots = rng.integers(0, size, 1 + size // 10)
        x[spots] = rng.choice([np.nan, np.inf, -np.inf], spots.size, p=[0.4, 0.2, 0.4])
    if index % 97 == 0:
        x[:] = rng.choice([np.nan, -np.inf], size)
    return x.astype(np.float32)


def _params(rng: np.random.Generator, size: int, real: int) -> SamplingParams:
    biased = rng.choice(real, int(rng.integers(0, min(real, 9))), replace=False)
    return SamplingParams(
        temperature=float(np.float32(rng.choice([0.0, 1e-30, 1e-6, 0.2, 0.7, 1.0, 1.9, 50.0]))),
        min_p=float(np.float32(rng.choice([0.0, 0.0, 0.0, 1e-6, 0.02, 0.3, 1.0]))),
        top_k=int(rng.choice([0, -1, 1, 3, 20, 64, 65, 150, size, size + 5])),
        top_p=float(np.float32(rng.choice([1.0, 1e-6, 0.1, 0.5, 0.9, 0.999]))),
        presence_penalty=float(rng.choice([0.0, 0.0, -2.0, 0.5, 2.0])),
        frequency_penalty=float(rng.choice([0.0, 0.0, -2.0, 0.25, 1.5])),
        repetition_penalty=float(np.float32(rng.choice([1.0, 1.0, 0.1, 1.2, 2.0, 30.0]))),
        logit_bias={int(i): float(np.float32(rng.uniform(-100, 100))) for i in biased},
        min_tokens=int(rng.choice([0, 0, 3, 30])),
        max_tokens=None,
        seed=int(rng.integers(0, 2**63)),
        stop_token_ids=[int(i) for i in rng.choice(real, rng.integers(0, 3), replace=False)],
    )


def _case(size: int, real: int, index: int) -> Case:
    rng = np.random.default_rng([size, index])
    seen = rng.random(size) < 0.4
    return Case(
        x=_logits(rng, size, index),
        params=_params(rng, size, real),
        prompt_length=int(rng.integers(10, POSITION + 1)),
        generated=np.where(seen, rng.geometric(0.5, size), 0),
        in_prompt=rng.random(size) < 0.3,
    )


@cache
def batch(size: int) -> Batch:
    """The cases of one size, as arrays."""
    real = max(int(size * _HOLE), EOS + 2)
    cases = tuple(_case(size, real, index) for index in range(COUNTS[size]))
    rows = [
        request_row(c.params, (EOS,), seed=c.params.seed, prompt_length=c.prompt_length)
        for c in cases
    ]
    counts = np.stack([2 * c.generated + c.in_prompt for c in cases])
    order = np.random.default_rng(size).permutation(len(cases))  # any row may have any slot
    slots = np.argsort(order)
    return Batch(
        cases=cases,
        logits=jnp.asarray(np.stack([c.x for c in cases])),
        state=stack_rows(rows),
        positions=jnp.full(len(cases), POSITION, jnp.int32),
        vocab_size=real,
        banned=jnp.arange(size) == 1,
        history=SlotCounts(jnp.asarray(counts[order], jnp.int32), jnp.asarray(slots, jnp.int32)),
    )
