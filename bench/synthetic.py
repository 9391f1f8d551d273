"""Qwen3.8-27B and its DFlash2 draft without a checkpoint: the geometry, and parameters as shapes, in the layouts of a target.

For compiling and timing where no checkpoint of that size is. Geometry as published (config.json of both); every linear is NVFP4
but embedding, head, gates and draft, which are dense, as in the reference system's own target (QUASAR).
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from onecat_jax.buckets import LAUNCH_ROUNDS
from onecat_jax.custom_calls.dispatch import Policy, Target
from onecat_jax.custom_calls.linear import DenseTensor, LinearRoute, NVFP4Tensor
from onecat_jax.device_state import empty_state
from onecat_jax.models.dflash import DFlashConfig, DraftOptions, build_draft
from onecat_jax.models.dflash import tensor_specs as draft_specs
from onecat_jax.models.qwen3_5 import ForwardOptions, ModelConfig, Params, build_params
from onecat_jax.models.qwen3_5.params import tensor_specs
from onecat_jax.models.qwen3_5.segments import GATES
from onecat_jax.models.spec import TensorSpec
from onecat_jax.models.tensors import HostTensor
from onecat_jax.operands import operand
from onecat_jax.sampling import stack_rows
from onecat_jax.sharding import Placement
from onecat_jax.speculation.dflash import DFlashDrafter
from onecat_jax.speculation.pace import Pace, Pacing
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.rounds import RUNNING, RoundRows
from onecat_jax.state import CacheState
from onecat_jax.steps import StepOptions

REAL_IDS = 248_077  # of 248,320
PAGE = 256


def published(name: str) -> dict[str, Any]:
    """The text fields of a published config.json."""
    path = Path(__file__).parent / "published" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class SyntheticRound:
    """A launch of rounds, as shapes: `launch` of these options takes these arguments."""

    options: StepOptions
    width: int  # Q
    arguments: tuple[
        Any, ...
    ]  # params, state, rows, sampling, banned, limit: pytrees of ShapeDtypeStruct


def synthetic_round(target: Target, host: Placement, *, rows: int, context: int) -> SyntheticRound:
    """The DFlash2 launch of a target GPU.

    Args:
      target: what weights are packed for and routes are chosen for.
      host: CPU devices, one per rank, on which two superblocks are packed to learn its shapes.
      rows: B.
      context: tokens that each row's pages hold.
    """
    config = ModelConfig.from_hf(published("qwen3.8-27b"))
    draft = DFlashConfig.from_hf(published("qwen3.8-27b-dflash2"))
    draft.check_target(config)
    policy = Policy(strict=False, target=target)
    forward = ForwardOptions(config, np.dtype(np.float16), policy, host.shards)
    drafter = DFlashDrafter(
        DraftOptions(draft, forward.dtype, policy, forward.shards, context),
        forward,
        REAL_IDS,
        draft.block_size - 1,
        False,
    )
    pacing = Pacing(drafter.drafts)
    options = StepOptions(forward, REAL_IDS, LAUNCH_ROUNDS, (drafter,), pacing)
    params = EngineParams(_target(config, policy, host), _draft(draft, policy, host))
    width = drafter.drafts + 1
    operands = (
        _rows(rows, context, pacing),
        stack_rows([], rows),
        np.zeros(config.vocab_size, bool),
        np.int32(LAUNCH_ROUNDS),
    )
    state = _state(config, draft, host, rows, context)
    return SyntheticRound(options, width, shapes((params, state, *operands)))


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def _zeros(name: str, spec: TensorSpec, quantised: bool) -> HostTensor:
    """Zeros that take no memory."""
    if spec.kind != "linear" or not quantised:
        zeros = np.broadcast_to(ml_dtypes.bfloat16(0), spec.shape)
        return DenseTensor(zeros) if spec.kind == "linear" else zeros
    n, k = spec.shape
    zero = np.uint8(0)
    return NVFP4Tensor(np.broadcast_to(zero, (n, k // 2)), np.broadcast_to(zero, (n, k // 16)), 1.0)


def _quantised(name: str) -> bool:
    module = name.removesuffix(".weight")
    return not module.endswith(("lm_head", *GATES))


def _build(build: Callable, specs: Any, config: Any, policy: Policy, host: Placement) -> Any:
    tensors = {name: _zeros(name, spec, _quantised(name)) for name, spec in specs.items()}
    return build(
        tensors, config, route=LinearRoute(policy), dtype=np.dtype(np.float16), placement=host
    )


def _target(config: ModelConfig, policy: Policy, host: Placement) -> Params:
    """Two superblocks are packed (one alone would be cut into runs of like layers); the others have their shapes."""
    two = replace(config, layer_types=config.layer_types[:8], mtp_num_hidden_layers=0)
    build = partial(build_params, loops="superblocks")
    params = shapes(_build(build, tensor_specs(two), two, policy, host))
    (segment,) = params.segments
    more = config.num_hidden_layers // 8
    longer = jax.tree.map(partial(_repeated, times=more), segment)
    return replace(params, segments=(replace(longer, repeats=segment.repeats * more),))


def _repeated(leaf: jax.ShapeDtypeStruct, times: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((leaf.shape[0] * times, *leaf.shape[1:]), leaf.dtype)


def _draft(config: DFlashConfig, policy: Policy, host: Placement) -> Any:
    tensors = {name: _zeros(name, spec, False) for name, spec in draft_specs(config).items()}
    return build_draft(
        tensors, config, route=LinearRoute(policy), dtype=np.dtype(np.float16), placement=host
    )


def _state(
    config: ModelConfig, draft: DFlashConfig, host: Placement, rows: int, context: int
) -> CacheState:
    pages = 1 + rows * math.ceil(context / PAGE)
    local, its_draft = config.local(host.size), draft.local(host.size)
    shape = local.cache_shape(pages=pages, page_size=PAGE, slots=1 + rows, mtp=False)
    window = its_draft.draft_shape(page_size=PAGE, max_len=context, kv_dtype="float16")
    half = np.dtype(np.float16)
    zeros = partial(empty_state, host, shape, kv_dtype=half, window_dtype=half, draft=window)
    return jax.eval_shape(zeros)


def _rows(rows: int, context: int, pacing: Pacing) -> RoundRows:
    start = Pace.start(np.int32(pacing.drafts), pacing)
    return RoundRows(
        token=operand([0] * rows),
        position=operand([0] * rows),
        budget=operand([context] * rows),
        status=operand([RUNNING] * rows),
        pace=jax.tree.map(lambda leaf: np.stack([leaf] * rows), start),
        slots=operand(list(range(1, rows + 1))),
        table=np.zeros((rows, math.ceil(context / PAGE)), np.int32),
    )
