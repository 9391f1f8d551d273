"""The oracle of sampling: NumPy in float64, one row at a time, with loops and full sorts. Shares no code with the package.

A decision within rounding of its threshold can't be held against float32; functions that decide say so for the whole row
(`close`), and tests count the rows that are left.
"""

from dataclasses import dataclass

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
NEAR = 3e-6  # of a probability mass, or of a logit relative to its size


@dataclass
class Row:
    """Logits on their way, float64 [V], -inf = removed; and whether a decision was too close to call."""

    x: np.ndarray
    close: bool = False


def cleaned(x: np.ndarray) -> np.ndarray:
    """NaN counts as removed, infinity as the largest float32; what falls below float32 is removed."""
    x = np.array(x, np.float64)
    for i, value in enumerate(x):
        if np.isnan(value) or value < -LARGEST:
            x[i] = -np.inf
        elif value > LARGEST:
            x[i] = LARGEST
    return x


def penalise(
    x: np.ndarray,
    generated: np.ndarray,
    in_prompt: np.ndarray,
    *,
    presence: float,
    frequency: float,
    repetition: float,
) -> np.ndarray:
    """Penalties of vLLM's definition. generated: how often; in_prompt: whether."""
    x = cleaned(x)
    for i in range(x.size):
        if generated[i] or in_prompt[i]:
            x[i] = x[i] / repetition if x[i] > 0 else x[i] * repetition
        for _ in range(generated[i]):
            x[i] -= frequency
        if generated[i]:
            x[i] -= presence
    return cleaned(x)


def bias(x: np.ndarray, biases: dict[int, float]) -> np.ndarray:
    x = cleaned(x)
    for token, value in biases.items():
        x[token] += value
    return cleaned(x)


def remove(x: np.ndarray, tokens: set[int]) -> np.ndarray:
    x = cleaned(x)
    for token in tokens:
        x[token] = -np.inf
    return x


def temperature(x: np.ndarray, t: float) -> np.ndarray:
    """(x - max) / t; a greedy row counts as t = 1."""
    x = cleaned(x)
    if np.isfinite(x).any():
        x = (x - x.max()) / (t or 1.0)
    return cleaned(x)


def ranked(x: np.ndarray) -> list[int]:
    """Ids by value descending, then id ascending."""
    return sorted(range(x.size), key=lambda i: (-x[i], i))


def _nearly(x: np.ndarray, last: float) -> bool:
    """Whether a value lies so near the last kept one that float32 may not tell them apart."""
    near = np.abs(x - last) < NEAR * max(1.0, abs(last))
    return bool(np.any(near & (x != last)))


def min_p(x: np.ndarray, p: float) -> Row:
    x = cleaned(x)
    if p == 0 or not np.isfinite(x).any():
        return Row(x)
    floor = x.max() + np.log(p)
    return Row(np.where(x >= floor, x, -np.inf), _nearly(x, floor))


def top_k(x: np.ndarray, k: int) -> Row:
    x = cleaned(x)
    if k <= 0 or k >= x.size:
        return Row(x)
    order = ranked(x)
    last = x[order[k - 1]]
    kept = np.full(x.size, -np.inf)
    for i in order[:k]:
        kept[i] = x[i]
    return Row(kept, bool(np.isfinite(last)) and _nearly(x, last))


def top_p(x: np.ndarray, p: float) -> Row:
    x = cleaned(x)
    if p >= 1 or not np.isfinite(x).any():
        return Row(x)
    weights = np.exp(x - x.max())
    kept, before, close = np.full(x.size, -np.inf), 0.0, False
    for place, i in enumerate(ranked(x)):
        close |= place > 0 and weights[i] > 0 and abs(before - p) < NEAR
        if place == 0 or before < p:
            kept[i] = x[i]
        before += weights[i] / weights.sum()
    return Row(kept, close or _nearly(x, kept[np.isfinite(kept)].min()))


def truncated(x: np.ndarray, *, t: float, minimum: float, k: int, p: float) -> Row:
    """Temperature, min-p, top-k, top-p."""
    row, close = Row(temperature(x, t)), False
    for step, value in ((min_p, minimum), (top_k, k), (top_p, p)):
        row = step(row.x, value)
        close |= row.close
    return Row(row.x, close)


def probabilities(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()
