"""From a checkpoint directory and engine arguments to a running engine: plan, refuse or load, allocate."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from onecat_jax.buckets import LAUNCH_STEPS, Buckets
from onecat_jax.config import EngineConfig
from onecat_jax.device_state import empty_state
from onecat_jax.engine import Engine
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.memory_plan import MemoryPlan
from onecat_jax.loading.planning import plan_memory
from onecat_jax.loading.ranks import check_ranks
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import LoadedModel, load_model
from onecat_jax.models import registry
from onecat_jax.programs import Programs
from onecat_jax.scheduler import PagePool, Scheduler
from onecat_jax.sharding import Placement
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
    checkpoint: Checkpoint, tokenizer: Tokenizer, config: EngineConfig, progress: Progress
) -> BuiltEngine:
    """Plans memory before a weight is read, then loads.

    Raises:
      ModelConfigError, CheckpointError, CapacityError, EngineError.
    """
    family = registry.resolve(checkpoint.config)
    model = family.read_config(checkpoint.config)
    sources = find_sources(checkpoint, family.tensor_specs(model))
    check_ranks(model, sources, config.tensor_parallel_size)  # before devices are counted
    placement = Placement.of(config.tensor_parallel_size)
    plan = plan_memory(config, model, sources, placement.devices)
    loading = partial(progress, "loading weights")
    loaded = load_model(checkpoint, sources, model, config, loading, placement)
    engine = _engine(loaded, tokenizer, config, plan, placement)
    return BuiltEngine(engine, plan, model.max_position_embeddings)


def _engine(
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    config: EngineConfig,
    plan: MemoryPlan,
    placement: Placement,
) -> Engine:
    model, cache = loaded.options.config, plan.cache
    request = plan.request
    zeros = partial(
        empty_state,
        placement,
        cache,
        kv_dtype=request.kv_storage,
        window_dtype=loaded.options.compute_dtype,
    )
    pool = PagePool(cache.pages, cache.slots, cache.page_size)
    return Engine(
        params=loaded.params,
        new_state=zeros,
        options=StepOptions(
            forward=loaded.options,
            vocab_size=min(model.vocab_size, tokenizer.vocab_size),
            launch_steps=LAUNCH_STEPS,
        ),
        buckets=Buckets.plan(
            config.max_num_batched_tokens, config.max_num_seqs, loaded.options.least_rows
        ),
        scheduler=Scheduler(pool, config.max_num_seqs, request.max_model_len),
        table_width=pool.pages_for(request.max_model_len),
        banned=tokenizer.banned_mask(model.vocab_size),
        programs=Programs(placement),
    )
