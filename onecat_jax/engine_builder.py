"""From a checkpoint directory and engine arguments to a running engine: plan, refuse or load, allocate."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from onecat_jax.buckets import LAUNCH_ROUNDS, Buckets
from onecat_jax.config import EngineConfig
from onecat_jax.device_state import empty_state
from onecat_jax.engine import Engine
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.memory_plan import MemoryPlan
from onecat_jax.loading.planning import plan_memory
from onecat_jax.loading.ranks import check_ranks
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import load_model
from onecat_jax.models import registry
from onecat_jax.models.qwen3_5 import ForwardOptions
from onecat_jax.programs import Programs
from onecat_jax.scheduler import PagePool, Scheduler
from onecat_jax.sharding import Placement
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.setup import (
    DraftModel,
    check_head,
    load_draft,
    make_drafters,
    make_pacing,
    open_draft,
    plan_draft,
)
from onecat_jax.steps import StepOptions
from onecat_jax.text import Tokenizer

Progress = Callable[[str, int, int], None]  # what, done, total


@dataclass(frozen=True)
class BuiltEngine:
    """An engine and what it was built from."""

    engine: Engine
    plan: MemoryPlan
    context_limit: int  # tokens that the checkpoint was made for


def build_engine(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    config: EngineConfig,
    progress: Progress,
    *,
    model: str = "",
) -> BuiltEngine:
    """Plans memory before a weight is read, then loads.

    Args:
      checkpoint: of the model.
      tokenizer: its own.
      config: engine arguments.
      progress: called with (what, done, total).
      model: what the checkpoint was asked for as: the embedded one has a draft of its own.

    Raises:
      ModelConfigError, CheckpointError, CapacityError, EngineError.
    """
    family = registry.resolve(checkpoint.config)
    geometry = family.read_config(checkpoint.config)
    sources = find_sources(checkpoint, family.tensor_specs(geometry))
    check_ranks(geometry, sources, config.tensor_parallel_size)  # before devices are counted
    check_head(config.speculation, sources)
    draft = open_draft(config.speculation, model, geometry)
    if draft is not None:
        check_ranks(draft.config, draft.sources, config.tensor_parallel_size)
    placement = Placement.of(config.tensor_parallel_size)
    device = placement.devices[0].platform
    extra = plan_draft(config.speculation, draft, geometry, config, device)
    plan = plan_memory(config, geometry, sources, placement.devices, extra)
    loading = partial(progress, "loading weights")
    loaded = load_model(checkpoint, sources, geometry, config, loading, placement)
    params = EngineParams(loaded.params)
    if draft is not None:
        loading = partial(progress, "loading draft")
        params = EngineParams(loaded.params, load_draft(draft, config, placement, loading))
    engine = _engine(params, loaded.options, draft, tokenizer, config, plan, placement)
    return BuiltEngine(engine, plan, geometry.max_position_embeddings)


def _engine(
    params: EngineParams,
    forward: ForwardOptions,
    draft: DraftModel | None,
    tokenizer: Tokenizer,
    config: EngineConfig,
    plan: MemoryPlan,
    placement: Placement,
) -> Engine:
    request, vocab = plan.request, forward.config.vocab_size
    zeros = partial(
        empty_state,
        placement,
        plan.cache,
        kv_dtype=request.kv_storage,
        window_dtype=forward.compute_dtype,
        draft=request.draft.state(request.max_model_len),
    )
    pool = PagePool(plan.cache.pages, plan.cache.slots, plan.cache.page_size)
    real_ids = min(vocab, tokenizer.vocab_size)
    drafters = make_drafters(config.speculation, draft, forward, real_ids, request.max_model_len)
    pacing = make_pacing(config.speculation, drafters)
    options = StepOptions(forward, real_ids, LAUNCH_ROUNDS, drafters, pacing)
    return Engine(
        params=params,
        new_state=zeros,
        options=options,
        buckets=Buckets.plan(
            config.max_num_batched_tokens,
            config.max_num_seqs,
            forward.least_rows,
            len(options.widths),
        ),
        scheduler=Scheduler(pool, config.max_num_seqs, request.max_model_len),
        table_width=pool.pages_for(request.max_model_len),
        banned=tokenizer.banned_mask(vocab),
        programs=Programs(placement),
    )
