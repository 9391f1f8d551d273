"""The gap rule for greedy rollouts of the embedded model: where two may differ, and by how much.

Sampled rows are held to it too, although their candidates were compared after noise was added to them: there a difference
almost always fails.
"""

from collections.abc import Sequence

from functional_cases import padded, tiny

from onecat_jax import functional
from onecat_jax.functional import Generated

GAP = 1e-4  # nats


def rows_that_differ(
    found: Generated, wanted: Generated, prompts: Sequence[Sequence[int]]
) -> list[int]:
    """Rows whose tokens aren't equal; AssertionError unless the first different ones were as good as equally likely."""
    differ = []
    for row, prompt in enumerate(prompts):
        one, other = (out.tokens[row].tolist() for out in (found, wanted))
        if one == other:
            continue
        at = next(i for i in range(len(one)) if one[i] != other[i])
        assert min(one[at], other[at]) >= 0, (row, one, other)
        gap = _gap([*prompt, *other[:at]], one[at], other[at])
        assert gap < GAP, (row, at, gap)
        differ.append(row)
    return differ


def _gap(prefix: Sequence[int], one: int, other: int) -> float:
    """Nats between two next tokens."""
    tokens, lengths = padded([[*prefix, one], [*prefix, other]], 256)
    found = functional.logprobs(*tiny(), tokens, lengths)
    return abs(float(found[0, len(prefix)] - found[1, len(prefix)]))
