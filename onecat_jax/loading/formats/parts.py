"""The stored tensors of one module, by suffix, and checks of what a header says about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onecat_jax.loading.safetensors_file import TensorInfo
from onecat_jax.models.spec import TensorSpec

_WEIGHT_SUFFIXES = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "weight_scale_inv",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """One stored tensor of a module."""

    name: str
    info: TensorInfo

    def __str__(self) -> str:
        return f"{self.name} ({self.info.file.name}, {self.info.dtype} {list(self.info.shape)})"


class Mismatch(Exception):
    """Why stored tensors don't make up what a spec needs.

    Collected by the caller, several to one error.

    Args:
      problem: a clause that names the tensor, or whose subject is `name`.
      name: stored name of the tensor whose values are wrong: who reads values doesn't know its file and dtype.
    """

    def __init__(self, problem: str, name: str = "") -> None:
        super().__init__(f"{name} {problem}".strip())
        self._problem, self._name = problem, name

    def within(self, tensors: Mapping[str, TensorInfo]) -> str:
        """The text, with file, dtype and shape of the tensor that it is about."""
        if self._name not in tensors:
            return str(self)
        return f"{Stored(self._name, tensors[self._name])} {self._problem}"


Parts = Mapping[str, Stored]


def parts_of(
    name: str, spec: TensorSpec, index: Mapping[str, str], tensors: Mapping[str, TensorInfo]
) -> dict[str, Stored]:
    """Stored tensors that belong to a canonical name, by suffix ("weight", "weight_scale", ...)."""
    if spec.kind != "linear":
        found = {"weight": name}
    else:
        module = name.removesuffix(".weight")
        found = {suffix: f"{module}.{suffix}" for suffix in _WEIGHT_SUFFIXES}
    return {
        suffix: Stored(index[full], tensors[index[full]])
        for suffix, full in found.items()
        if full in index
    }


@dataclass(frozen=True)
class Checks:
    """Checks the parts of one tensor; every refusal names the part, its file, and what is needed.

    Attributes:
      parts: all that is stored.
      codes: suffix of the weight or of its codes.
      title: what format it is, for people.
    """

    parts: Parts
    codes: str
    title: str

    def part(self, suffix: str, dtypes: Sequence[str], *shapes: Shape) -> Stored:
        """A part of one of these dtypes and shapes.

        Raises:
          Mismatch: missing, or of another dtype or shape.
        """
        found = self.of(suffix, dtypes, *shapes)
        if found.info.shape not in shapes:
            raise Mismatch(f"{found} has a wrong shape, needed {_wanted(dtypes, shapes)}")
        return found

    def of(self, suffix: str, dtypes: Sequence[str], *shapes: Shape | str) -> Stored:
        """A part of one of these dtypes; the shapes are for the message.

        Raises:
          Mismatch: missing, or of another dtype.
        """
        if suffix not in self.parts:
            raise self.bad(f"its {suffix} is missing, needed {_wanted(dtypes, shapes)}", ", ")
        found = self.parts[suffix]
        if found.info.dtype not in dtypes:
            raise Mismatch(f"{found} has a wrong dtype, needed {_wanted(dtypes, shapes)}")
        return found

    def optional(self, suffix: str, dtypes: Sequence[str], *shapes: Shape) -> str:
        """The stored name of a part that may be missing, "" if it is.

        Raises:
          Mismatch: of another dtype or shape.
        """
        return self.part(suffix, dtypes, *shapes).name if suffix in self.parts else ""

    def nothing_else(self, *suffixes: str) -> None:
        """Raises Mismatch if other parts than these are stored."""
        rest = [part for suffix, part in self.parts.items() if suffix not in suffixes]
        if rest:
            raise self.bad(f"{rest[0]} of another format lies beside it", ", yet ")

    def bad(self, why: str, joint: str = ", ") -> Mismatch:
        """A refusal of the tensor as a whole."""
        return Mismatch(f"{self.parts[self.codes]} is {self.title}{joint}{why}")


def _wanted(dtypes: Sequence[str], shapes: Sequence[Shape | str]) -> str:
    listed = " or ".join(s if isinstance(s, str) else str(list(s)) for s in shapes)
    return f"{' or '.join(dtypes)} {listed}"
