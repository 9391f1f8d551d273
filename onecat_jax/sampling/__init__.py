"""Pure sampling: counter-based randomness, penalties and biases, target transforms, the draw, the acceptance of drafts and log
probabilities.

Everything is jittable, takes one batch row per request in [B] arrays and gives a row the same result whatever its row number,
its neighbours and the batch size are. With `shards`, logits are one rank's slice of the vocabulary and results the same on all
ranks. Imports no model and no server.
"""

from onecat_jax.sampling.acceptance import Accepted, accept
from onecat_jax.sampling.counts import SlotCounts
from onecat_jax.sampling.drafts import Drafts, point_masses
from onecat_jax.sampling.draw import healthy_rows, sample, stop_hits
from onecat_jax.sampling.logprobs import token_logprobs
from onecat_jax.sampling.randomness import STREAM_ACCEPT, STREAM_DRAFT, STREAM_TARGET
from onecat_jax.sampling.state import SamplingState, request_row, set_row, stack_rows

__all__ = [
    "STREAM_ACCEPT",
    "STREAM_DRAFT",
    "STREAM_TARGET",
    "Accepted",
    "Drafts",
    "SamplingState",
    "SlotCounts",
    "accept",
    "healthy_rows",
    "point_masses",
    "request_row",
    "sample",
    "set_row",
    "stack_rows",
    "stop_hits",
    "token_logprobs",
]
