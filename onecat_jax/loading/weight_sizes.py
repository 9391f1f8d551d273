"""Bytes of a checkpoint's tensors as they will lie on a device, from headers alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from onecat_jax.custom_calls.dispatch import PLAIN, Policy
from onecat_jax.custom_calls.linear.packing import K_MULTIPLES, packed_shape, physical_rows
from onecat_jax.custom_calls.linear.routes import (
    DENSE_ROUTES,
    LAYOUT_OF_ROUTE,
    PACKED_ROUTES,
    LinearDescriptor,
    WeightKind,
    dense_dtype,
)
from onecat_jax.custom_calls.linear.weights import BLOCK, GROUP
from onecat_jax.loading.dtypes import DTYPES
from onecat_jax.loading.formats import DenseSource, Format, FP8Source, INT4Source, Source
from onecat_jax.models.slices import local_shape

EMBEDDING, GDN, ATTENTION, MLP = "embedding and head", "GDN linears", "attention linears", "MLP"
SMALL, MTP = "norms and small", "MTP head"
WEIGHT_GROUPS = (EMBEDDING, GDN, ATTENTION, MLP, SMALL, MTP)

_DENSE_ON_DEVICE = ("in_proj_a", "in_proj_b")  # decoded when they are loaded, whatever stores them
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


def format_on_device(name: str, source: Source) -> Format:
    """How a tensor lies on a device."""
    gate = name.removesuffix(".weight").endswith(_DENSE_ON_DEVICE)
    return "dense" if gate else source.format


@dataclass(frozen=True)
class DeviceSizes:
    """Bytes on each of several devices.

    Attributes:
      dtype: compute dtype.
      ranks: devices that share the model.
      policy: which layouts quantised weights are packed for.
    """

    dtype: str
    ranks: int = 1
    policy: Policy = Policy()

    def of(self, sources: Mapping[str, Source]) -> dict[str, int]:
        """Bytes of every tensor, by name. What a fused site needs beyond its tensors is counted with the last of them.

        Raises:
          EngineError: a tensor doesn't divide.
        """
        sizes: dict[str, int] = {}
        for names in _sites(sources).values():
            members = [sources[name] for name in names]
            if {format_on_device(name, sources[name]) for name in names} != {"dense"}:
                total = self._quantised(members)
                sizes |= _shared(names, [s.spec.shape[0] for s in members], total)
                continue
            itemsize = self._itemsize(members)
            for name, source in zip(names, members, strict=True):
                sizes[name] = self._dense(source, itemsize)
        return sizes

    def _itemsize(self, members: Sequence[Source]) -> int:
        """Of dense matrices that are placed side by side; what is decoded for it comes in the compute dtype."""
        stored = [DTYPES[s.dtype] if isinstance(s, DenseSource) else self.dtype for s in members]
        route = self._route("dense", 1, 1)  # any shape will do
        return dense_dtype(stored, self.dtype, route).itemsize

    def _dense(self, source: Source, itemsize: int) -> int:
        """Small tensors are kept in float32, whole numbers in 32 bits."""
        itemsize = 4 if source.spec.kind in ("vector", "index") else itemsize
        return itemsize * prod(local_shape(source.spec, self.ranks))

    def _quantised(self, site: Sequence[Source]) -> int:
        """Codes, scales and the rest of siblings that are packed together."""
        shapes = [local_shape(source.spec, self.ranks) for source in site]
        n, k = sum(rows for rows, _ in shapes), shapes[0][1]
        form = site[0].format
        layout = self._layout(form, n, k)
        rows = n if layout == "rows" else physical_rows(n)
        if form == "fp8":
            blocked = any(isinstance(s, FP8Source) and s.blocked for s in site)
            return _bytes("fp8 codes", n, k, layout) + 4 * rows * (-(-k // BLOCK) if blocked else 1)
        if form == "int4":
            int4 = [source for source in site if isinstance(source, INT4Source)]
            return _bytes("int4 codes", n, k // 2, layout) + _int4_groups(int4, rows, k, layout)
        codes = _bytes("nvfp4 codes", n, k // 2, layout)
        return codes + _bytes("nvfp4 scales", n, k // GROUP, layout) + 4 * rows

    def _layout(self, form: Format, n: int, k: int) -> str:
        """The layout that packed weights will have."""
        return "rows" if form == "dense" else LAYOUT_OF_ROUTE[self._route(form, n, k)]

    def _route(self, form: WeightKind, n: int, k: int) -> str:
        """What `LinearRoute.plan` will choose; asked without a trace in the report of routes."""
        if self.policy.backend == PLAIN:
            return PLAIN
        target = self.policy.resolved_target()
        descriptor = LinearDescriptor(form, n, k, self.dtype)
        candidates = DENSE_ROUTES if form == "dense" else PACKED_ROUTES
        fitting = (c.name for c in candidates if c.decline(descriptor, target) is None)
        return next(fitting, PLAIN)


def _sites(sources: Mapping[str, Source]) -> dict[str, list[str]]:
    """Names by the site that they are packed in; siblings of unlike formats, which loading refuses, each by itself."""
    sites: dict[str, list[str]] = {}
    for name, source in sources.items():
        parent, _, leaf = name.removesuffix(".weight").rpartition(".")
        first = next((group[0] for group in _FUSED if leaf in group), leaf)
        key = f"{parent}.{first} {format_on_device(name, source)}"
        sites.setdefault(key, []).append(name)
    return sites


def _shared(names: Sequence[str], rows: Sequence[int], total: int) -> dict[str, int]:
    """A site's bytes dealt out by rows."""
    shares = [total * n // sum(rows) for n in rows]
    shares[-1] += total - sum(shares)
    return dict(zip(names, shares, strict=True))


def _bytes(what: str, n: int, columns: int, layout: str) -> int:
    return prod(packed_shape(what, n, columns, layout))


def _int4_groups(site: Sequence[INT4Source], rows: int, k: int, layout: str) -> int:
    """Scales, zero points and the order of columns, in groups that suit all siblings."""
    group = gcd(*(source.group for source in site))
    dtypes = {DTYPES[source.scale_dtype].itemsize for source in site}
    alike = len({source.scale_dtype for source in site}) == 1
    itemsize = dtypes.pop() if alike else 4
    multiple = K_MULTIPLES.get(layout, 1)
    groups = -(-(-(-k // multiple) * multiple) // group)
    return rows * groups * (itemsize + 1) + 4 * k * any(source.ordered for source in site)


def largest_slab(sources: Mapping[str, Source], ranks: int = 1) -> int:
    """Elements of the largest quantised site, fused siblings together, on each device."""
    return max(
        (
            sum(prod(local_shape(sources[name].spec, ranks)) for name in names)
            for names in _sites(sources).values()
            if format_on_device(names[0], sources[names[0]]) != "dense"
        ),
        default=0,
    )
