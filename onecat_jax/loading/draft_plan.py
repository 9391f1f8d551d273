"""What speculative decoding adds to the memory of each device."""

from dataclasses import dataclass, replace

from onecat_jax.state import NO_DRAFTS, DraftShape, DraftWindow


@dataclass(frozen=True)
class DraftPlan:
    """Sizes on one device, as far as they are known before the longest sequence is.

    Attributes:
      weights: bytes of a draft model.
      shape: of the drafter's state, but for what depends on the longest sequence.
      window: positions that a draft model looks back; None for all of them.
      block: rows that it writes beyond the last committed token.
      lookup: whether the sequences' tokens are kept.
      taps: layers of the target whose outputs are kept for a while.
      width: rows of the widest round.
    """

    weights: int = 0
    shape: DraftShape = NO_DRAFTS
    window: int | None = None
    block: int = 0
    lookup: bool = False
    taps: int = 0
    width: int = 1

    def state(self, max_len: int) -> DraftShape:
        """The shape for sequences of up to so many positions."""
        shape = self.shape
        if shape.layers:
            ring = DraftWindow.ring_pages(self.window, max_len, self.block, shape.page_size)
            shape = replace(shape, ring=ring)
        return replace(shape, tokens=max_len) if self.lookup else shape


NO_PLAN = DraftPlan()
