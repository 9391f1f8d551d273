"""DFlash and DFlash2: drafts of a whole block at once from outputs of the target's layers."""

from onecat_jax.models.dflash.build import build_draft
from onecat_jax.models.dflash.config import DFlashConfig
from onecat_jax.models.dflash.forward import block, lattice, write_context
from onecat_jax.models.dflash.options import DraftOptions
from onecat_jax.models.dflash.params import tensor_specs
from onecat_jax.models.dflash.specs import draft_specs
from onecat_jax.models.dflash.weights import DFlashParams

__all__ = [
    "DFlashConfig",
    "DFlashParams",
    "DraftOptions",
    "block",
    "build_draft",
    "draft_specs",
    "lattice",
    "tensor_specs",
    "write_context",
]
