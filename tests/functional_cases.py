"""The models and prompts that the tests of the functional API share."""

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from checkpoints import SMALL, Style, write_checkpoint

from onecat_jax import SamplingParams, functional
from onecat_jax.functional import Generated, Model, Params, Sampling
from onecat_jax.loading import locate
from onecat_jax.models.qwen3_5 import ModelConfig

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
ROWS, WIDTH, NEW = 4, 160, 16  # the shapes of most tests, so that they share compiled programs
PROMPT_LENGTHS = (150, 9, 1, 33)  # the first one is cut into chunks


@cache
def tiny() -> tuple[Model, Params]:
    """The embedded model."""
    return functional.load("tiny")


DENSE = Style(naming="dense")


def small_checkpoint(
    folder: Path, style: Style = DENSE, seed: int = 0, config: ModelConfig = SMALL
) -> Path:
    """A random checkpoint that `functional.load` takes: with the embedded model's tokenizer."""
    write_checkpoint(folder, config, style, seed)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(locate("tiny") / name, folder / name)
    return folder


def random_prompts(
    lengths: Sequence[int] = PROMPT_LENGTHS, seed: int = 0, below: int = 8000
) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, below, length).tolist() for length in lengths]


def padded(prompts: Sequence[Sequence[int]], width: int = WIDTH) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded with a token that would change results if it were read."""
    tokens = np.full((len(prompts), width), 11, np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    return tokens, np.array([len(prompt) for prompt in prompts], np.int32)


def rollout(prompts: Sequence[Sequence[int]], sampling: Sampling, **arguments: Any) -> Generated:
    """`generate` with the embedded model and the shared shapes, on the host."""
    tokens, lengths = padded(prompts)
    arguments = {"max_new_tokens": NEW} | arguments
    out = functional.generate(*tiny(), tokens, lengths, sampling, **arguments)
    return jax.tree.map(np.asarray, out)


def token_lists(out: Generated) -> list[list[int]]:
    """The new tokens of each row."""
    return [row[:n].tolist() for row, n in zip(out.tokens, out.lengths, strict=True)]
