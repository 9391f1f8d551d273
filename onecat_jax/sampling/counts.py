"""What the penalties of a batch read: token counts by slot."""

from dataclasses import dataclass

import jax
from jax import Array

from onecat_jax.state.history import GENERATED


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlotCounts:
    """Counts of all slots and the slot of each batch row; encoded as in `state.history`."""

    counts: Array  # [slots, V] int32, the rank's slice of V
    slots: Array  # [B] int32

    def rows(self) -> tuple[Array, Array]:
        """Times each token was generated, int32 [B, V], and whether it was seen at all, prompt included, bool [B, V]."""
        counts = self.counts[self.slots]
        return counts // GENERATED, counts > 0
