"""From a speculative config to what an engine needs for it: the draft's checkpoint, its share of memory, its drafters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.errors import CheckpointError, EngineError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.draft_plan import DraftPlan
from onecat_jax.loading.formats import Source
from onecat_jax.loading.hub import EMBEDDED, locate_draft
from onecat_jax.loading.memory_plan import KV_STORAGE
from onecat_jax.loading.sources import find_sources
from onecat_jax.loading.tensor_source import tensor_source
from onecat_jax.loading.weight_sizes import DeviceSizes
from onecat_jax.models.dflash import (
    DFlashConfig,
    DFlashParams,
    DraftOptions,
    build_draft,
)
from onecat_jax.models.dflash import (
    tensor_specs as draft_tensor_specs,
)
from onecat_jax.models.qwen3_5 import ForwardOptions, ModelConfig
from onecat_jax.sharding import Placement
from onecat_jax.speculation.config import MAX_DRAFTS, SpeculativeConfig
from onecat_jax.speculation.dflash import DFlashDrafter
from onecat_jax.speculation.interface import Drafter
from onecat_jax.speculation.mtp import MTPDrafter
from onecat_jax.speculation.ngram import LookupBlockDrafter, LookupDrafter
from onecat_jax.speculation.pace import NO_PACING, Pacing
from onecat_jax.state import DraftShape


@dataclass(frozen=True)
class DraftModel:
    """A draft checkpoint that suits its target."""

    checkpoint: Checkpoint
    config: DFlashConfig
    sources: Mapping[str, Source]


def open_draft(
    speculation: SpeculativeConfig | None, model: str, target: ModelConfig
) -> DraftModel | None:
    """The draft checkpoint that a config asks for, validated; None for methods without one.

    Args:
      speculation: the config; None for no speculation.
      model: what the target was asked for as.
      target: its geometry.

    Raises:
      EngineError: no draft is named, or more drafts are asked for than it makes.
      CheckpointError, ModelConfigError: it is damaged, or made for another target.
    """
    if speculation is None or speculation.method != "dflash":
        return None
    name = speculation.model or (EMBEDDED if model == EMBEDDED else None)
    if name is None:
        raise EngineError(
            "speculative_config: method 'dflash' needs the draft checkpoint as 'model': a folder, or owner/name of the "
            "Hugging Face Hub."
        )
    checkpoint = Checkpoint.open(locate_draft(name, speculation.revision))
    _refuse_pickles(checkpoint)
    config = DFlashConfig.from_hf(checkpoint.config)
    config.check_target(target)
    speculation.drafts(config.block_size - 1)
    return DraftModel(checkpoint, config, find_sources(checkpoint, draft_tensor_specs(config)))


def _refuse_pickles(checkpoint: Checkpoint) -> None:
    """Without the row that it was trained with a draft would run, and draft nothing that is accepted."""
    file = checkpoint.root / "mask_embedding.pt"
    if file.is_file():
        raise CheckpointError(
            f"{file} holds the draft's embedding of its mask token as a pickle, which isn't read; store it in the safetensors "
            "file as tensor 'mask_embedding'"
        )


def check_head(speculation: SpeculativeConfig | None, sources: Mapping[str, Source]) -> None:
    """Refuses method "mtp" for a target without a head of its own; `sources` are the target's tensors.

    Raises:
      CheckpointError.
    """
    if speculation is None or speculation.method != "mtp":
        return
    if not any(name.startswith("mtp.") for name in sources):
        raise CheckpointError(
            "speculative_config: method 'mtp' drafts with the MTP head of the checkpoint, but it has none: no tensor is named "
            "mtp.*; use a checkpoint that has one, or method 'ngram' or 'dflash'."
        )


def plan_draft(
    speculation: SpeculativeConfig | None,
    draft: DraftModel | None,
    target: ModelConfig,
    engine: EngineConfig,
    platform: str,
) -> DraftPlan:
    """What speculation adds to the memory of each device; `draft` is `open_draft`'s."""
    if speculation is None:
        return DraftPlan()
    compute, slab = engine.compute_dtype(platform), engine.block_size
    if speculation.method == "ngram":
        return DraftPlan(lookup=True, width=speculation.drafts() + 1)
    if draft is None:
        hidden = DraftShape(page_size=slab, hidden=target.hidden_size)
        return DraftPlan(shape=hidden, width=speculation.drafts() + 1)
    config, local = draft.config, draft.config.local(engine.tensor_parallel_size)
    kv_dtype = compute if speculation.kv_cache_dtype == "auto" else speculation.kv_cache_dtype
    return DraftPlan(
        weights=_draft_bytes(draft, compute, engine),
        shape=DraftShape(
            layers=config.num_hidden_layers,
            page_size=slab,
            kv_heads=local.num_key_value_heads,
            head_dim=config.head_dim,
            kv_dtype=KV_STORAGE.get(kv_dtype, kv_dtype),
        ),
        window=config.window,
        block=config.block_size,
        lookup=speculation.adaptive_lookup,
        taps=len(config.target_layer_ids),
        width=_widest(speculation, config),
    )


def _draft_bytes(draft: DraftModel, compute: str, engine: EngineConfig) -> int:
    """Bytes of a draft's weights on each device. Keys' and values' projections are placed twice."""
    policy = Policy(engine.backend, engine.strict)
    sizes = DeviceSizes(compute, engine.tensor_parallel_size, policy).of(draft.sources)
    copied = [n for n in sizes if n.removesuffix(".weight").endswith(("k_proj", "v_proj"))]
    return sum(sizes.values()) + sum(sizes[name] for name in copied)


def _widest(speculation: SpeculativeConfig, config: DFlashConfig) -> int:
    return 1 + (
        MAX_DRAFTS if speculation.adaptive_lookup else speculation.drafts(config.block_size - 1)
    )


def load_draft(
    draft: DraftModel,
    engine: EngineConfig,
    placement: Placement,
    progress: Callable[[int, int], None],
) -> DFlashParams:
    """Packs and places a draft's weights.

    Args:
      progress: called with bytes done and bytes in all.

    Raises:
      CheckpointError: values that no format has, or damaged data.
    """
    policy = Policy(backend=engine.backend, strict=engine.strict)
    dtype = engine.compute_dtype(policy.resolved_target().platform)
    total = sum(info.nbytes for info in draft.checkpoint.tensors.values())
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(min(done, total), total)

    params = build_draft(
        tensor_source(draft.checkpoint, draft.sources, placement.size),
        draft.config,
        route=LinearRoute(policy),
        dtype=dtype,
        placement=placement,
        progress=advance,
    )
    progress(total, total)
    return jax.block_until_ready(params)


def make_drafters(
    speculation: SpeculativeConfig | None,
    draft: DraftModel | None,
    target: ForwardOptions,
    vocab_size: int,
    max_len: int,
) -> tuple[Drafter, ...]:
    """The drafters of an engine, the narrowest first.

    Args:
      target: options of the target's passes.
      vocab_size: ids from here on are never proposed.
      max_len: tokens of the longest sequence.
    """
    if speculation is None:
        return ()
    greedy = speculation.draft_sample_method == "greedy"
    if speculation.method == "ngram":
        least, most = speculation.least_match, speculation.most_match
        return (LookupDrafter(speculation.drafts(), least, most),)
    if draft is None:
        return (MTPDrafter(target, vocab_size, speculation.drafts(), greedy),)
    block = DFlashDrafter(
        DraftOptions(draft.config, target.dtype, target.policy, target.shards, max_len),
        target,
        vocab_size,
        speculation.drafts(draft.config.block_size - 1),
        greedy,
    )
    if not speculation.adaptive_lookup:
        return (block,)
    return tuple(LookupBlockDrafter(block, drafts) for drafts in (block.drafts, MAX_DRAFTS))


def make_pacing(speculation: SpeculativeConfig | None, drafters: Sequence[Drafter]) -> Pacing:
    """How many drafts requests get."""
    if speculation is None:
        return NO_PACING
    long_drafts = drafters[-1].drafts if len(drafters) > 1 else 0
    return Pacing(drafters[0].drafts, long_drafts, speculation.min_acceptance_length)
