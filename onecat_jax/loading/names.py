"""Stored tensor names to canonical ones, which have no prefix: "layers.0.mlp.up_proj.weight"."""

from collections.abc import Iterable

from onecat_jax.errors import CheckpointError

PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
"""Prefixes of the text model, the longest first; at most one is taken off."""

_OLD_NAMES = (
    ("midlayer.", "layers.0."),  # of drafts with a single layer
    ("encoder.fc.", "fc."),
    ("encoder.output_norm_enc.", "hidden_norm."),
)
_OTHER_MODELS = ("visual.", "vision_tower.")
_BUFFERS = (".rotary_emb.inv_freq",)


def canonical(stored: str) -> str | None:
    """The prefix-free name, or None for what the text model never reads (vision, old buffers)."""
    name = _renamed(strip_prefix(stored))
    if name.startswith(_OTHER_MODELS) or name.endswith(_BUFFERS):
        return None
    return name


def strip_prefix(stored: str) -> str:
    """Takes off the prefix of the text model, if there is one."""
    for prefix in PREFIXES:
        if stored.startswith(prefix):
            return stored[len(prefix) :]
    return stored


def _renamed(name: str) -> str:
    for old, new in _OLD_NAMES:
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def spellings(module: str) -> tuple[str, ...]:
    """Every way in which a configuration may name a canonical module: bare or prefixed."""
    return (module, *(prefix + module for prefix in PREFIXES))


def canonical_index(stored: Iterable[str]) -> dict[str, str]:
    """Canonical name to stored name.

    Raises:
      CheckpointError: two stored names mean the same tensor.
    """
    index: dict[str, str] = {}
    for name in stored:
        short = canonical(name)
        if short is None:
            continue
        if short in index:
            raise CheckpointError(
                f"tensors {index[short]!r} and {name!r} both mean {short}; the checkpoint must "
                "hold one of them"
            )
        index[short] = name
    return index
