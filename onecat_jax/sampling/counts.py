"""What the penalties of a batch read: token counts by slot."""

from dataclasses import dataclass

from jax import Array


@dataclass(frozen=True)
class SlotCounts:
    """Counts of all slots and the slot of each batch row; encoded as in `state.history`."""

    counts: Array  # [slots, V] int32
    slots: Array  # [B] int32
