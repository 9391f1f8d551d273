"""Finds the stored tensors behind every tensor a model needs, without reading one weight."""

from collections.abc import Iterable, Mapping

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.cache_scales import CACHE_SCALES
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.formats import Mismatch, Parts, QuarkSource, Source, parts_of, source
from onecat_jax.loading.names import canonical_index
from onecat_jax.loading.quantization import Rules, read_rules
from onecat_jax.models.spec import TensorSpec, TensorSpecs

IGNORED = frozenset({"input_scale", "input_global_scale", "q_scale", "prob_scale"})
"""Last words of names of activations' scales: weights that are multiplied in floating point don't need them."""

_LISTED = 5


def find_sources(checkpoint: Checkpoint, specs: TensorSpecs) -> dict[str, Source]:
    """Canonical name to source. A group of optional tensors (MTP) that is wholly absent is left
    out.

    Raises:
      CheckpointError: tensors are missing, unknown, of a wrong shape or dtype, of a format that
        isn't implemented, or contradict the quantisation record; one error names up to five of
        them. Or the record is one that can't be understood.
    """
    index = canonical_index(checkpoint.tensors)
    rules = read_rules(checkpoint.quantization, checkpoint.quantization_file)
    found: dict[str, Source] = {}
    problems: list[str] = []
    used: set[str] = set()
    for name, spec in _wanted(index, specs).items():
        parts = parts_of(name, spec, index, checkpoint.tensors)
        used.update(part.name for part in parts.values())
        try:
            found[name] = _source(checkpoint, name, spec, parts, rules)
        except Mismatch as mismatch:
            problems.append(mismatch.within(checkpoint.tensors))
    problems += _unknown(checkpoint, index, specs, used)
    refuse(checkpoint, "don't fit the model", problems)
    return found


def refuse(checkpoint: Checkpoint, what: str, problems: list[str]) -> None:
    """Raises one CheckpointError that lists the first problems, if there are any."""
    if not problems:
        return
    listed = "; ".join(problems[:_LISTED])
    more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    head = f"{checkpoint.root}: {len(problems)} of its tensors {what}"
    raise CheckpointError(f"{head}: {listed}{more}")


def _wanted(index: Mapping[str, str], specs: TensorSpecs) -> TensorSpecs:
    """Specs without the optional groups of which the checkpoint holds nothing.

    A group is the first word of a name.
    """
    groups = {name.split(".")[0] for name in index}
    return {
        name: spec for name, spec in specs.items() if spec.required or name.split(".")[0] in groups
    }


def _source(
    checkpoint: Checkpoint, name: str, spec: TensorSpec, parts: Parts, rules: Rules
) -> Source:
    found = source(name, spec, parts)
    if isinstance(found, QuarkSource):
        found = _with_packing(name, found, parts, rules)
    _cross_check(name, found, parts, rules)
    return found.settled(checkpoint.array)


def _with_packing(name: str, found: QuarkSource, parts: Parts, rules: Rules) -> QuarkSource:
    packing = rules.packing(_module(name))
    if packing is None:
        _, why = rules.expected(_module(name))
        said = f"{rules.file} ({rules.method}) says {why}" if why else "there is no such record"
        raise Mismatch(
            f"{parts['weight']} is Quark INT4, whose order of nibbles and sign only a quantisation record tells, but {said}"
        )
    return found.packed(packing)


def _cross_check(name: str, found: Source, parts: Parts, rules: Rules) -> None:
    """An MTP head may be dense without being listed: exporters that never load it don't know it."""
    if found.spec.kind != "linear":
        return
    expected, why = rules.expected(_module(name))
    if expected is None or found.agrees(expected):
        return
    if found.format == "dense" and (name.startswith("mtp.") or _module(name) in rules.free):
        return
    weight = next(part for part in parts.values() if part.name == found.weight)
    raise Mismatch(
        f"{weight} is stored as {found.storage}, but {rules.file} ({rules.method}) says {why}"
    )


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _unknown(
    checkpoint: Checkpoint, index: Mapping[str, str], specs: TensorSpecs, used: set[str]
) -> Iterable[str]:
    """Tensors that nobody asked for.

    A stored head beside tied embeddings and an MTP head without a place are known.
    """
    known = {name.split(".")[0] for name in specs}
    optional = {"lm_head", "mtp"} - known
    for name, stored in index.items():
        last = name.rpartition(".")[2]
        if stored in used or name.split(".")[0] in optional or last in IGNORED | CACHE_SCALES:
            continue
        info = checkpoint.tensors[stored]
        yield f"{stored} ({info.file.name}, {info.dtype} {list(info.shape)}) is unknown"
