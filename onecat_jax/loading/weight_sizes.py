"""Bytes of a checkpoint's tensors as they will lie on a device, from headers alone."""

from collections.abc import Mapping
from math import prod

from onecat_jax.loading.formats import Source
from onecat_jax.models.slices import local_shape

EMBEDDING, GDN, ATTENTION, MLP = "embedding and head", "GDN linears", "attention linears", "MLP"
SMALL, MTP = "norms and small", "MTP head"
WEIGHT_GROUPS = (EMBEDDING, GDN, ATTENTION, MLP, SMALL, MTP)

_DENSE_ON_DEVICE = ("in_proj_a", "in_proj_b")  # read in the compute dtype whatever stores them
_FUSED = (("q_proj", "k_proj", "v_proj"), ("in_proj_qkv", "in_proj_z"), ("gate_proj", "up_proj"))


def group_of(name: str, source: Source) -> str:
    """The group of a canonical name."""
    if name.startswith("mtp."):
        return MTP
    if name.startswith(("embed_tokens.", "lm_head.")):
        return EMBEDDING
    if source.spec.kind != "linear":
        return SMALL
    return GDN if ".linear_attn." in name else ATTENTION if ".self_attn." in name else MLP


def device_bytes(name: str, source: Source, itemsize: int, ranks: int = 1) -> int:
    """Bytes of one tensor on each of several devices; small tensors are kept in float32.

    Raises:
      EngineError: it doesn't divide.
    """
    shape = local_shape(source.spec, ranks)
    size = prod(shape)
    if source.spec.kind == "vector":
        return 4 * size
    if source.format == "nvfp4" and not name.removesuffix(".weight").endswith(_DENSE_ON_DEVICE):
        return size // 2 + size // 16 + 4 * shape[0]
    return itemsize * size


def largest_slab(sources: Mapping[str, Source], ranks: int = 1) -> int:
    """Elements of the largest quantised site, fused siblings together, on each device."""
    sites: dict[str, int] = {}
    for name, source in sources.items():
        if source.format != "nvfp4":
            continue
        parent, _, leaf = name.removesuffix(".weight").rpartition(".")
        site = next((f"{parent}.{group[0]}" for group in _FUSED if leaf in group), name)
        sites[site] = sites.get(site, 0) + prod(local_shape(source.spec, ranks))
    return max(sites.values(), default=0)
