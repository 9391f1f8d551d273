"""The V100 kernels of the linear without a V100: what they need, and a model of what bounds them.

Model: a warp issues one instruction per cycle and sub-core; the main loop, counted once through from the image, consumes 4
units of 1024 bytes of codes and what lies beside them. Latency is left out. Rates of a V100-SXM2: 80 multiprocessors of 4
sub-cores at 1.53 GHz, 65536 registers and 96 KB of shared memory each, an m8n8k4 in 8 cycles; memory at 0.82 TB/s, as
published kernels reach.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from onecat_jax import _ext
from onecat_jax.custom_calls.probes.cubin import Kernel, kernels

MODULES = ("nvfp4_m8n8k4", "fp8_m8n8k4", "int4_m8n8k4")
ARCHITECTURE = "sm_70"
MULTIPROCESSORS, SUB_CORES, CLOCK = 80, 4, 1.53e9
REGISTERS, SHARED_BYTES, WARPS, BLOCKS = 65536, 96 << 10, 64, 32
REGISTER_UNIT = 8  # per thread
PRODUCT_CYCLES = 8.383
MEMORY = 0.82e12  # bytes per second
UNITS = 4  # per round of the main loop
UNIT_BYTES = {  # codes, scales and zero points of 32 rows
    "nvfp4": 1024 + 128,
    "fp8": 1024,
    "fp8 blocks": 1024 + 32,
    "int4": 1024 + 48,  # groups of 128 k
    "int4 halves": 1024 + 192,  # of 32 k
    "int4 wide": 1024 + 320,  # the same under float32 scales
}


@dataclass(frozen=True)
class Report:
    """One kernel; bounds are bytes of weights per second of the whole GPU."""

    name: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    blocks_per_multiprocessor: int
    instructions: int  # of the main loop
    products: int
    loads_128: int
    issue_bound: float
    product_bound: float

    @property
    def of_memory(self) -> float:
        """The lower bound as a multiple of memory's."""
        return min(self.issue_bound, self.product_bound) / MEMORY


def reports() -> Iterator[Report]:
    """Every linear kernel of the embedded sm_70 images."""
    for module in MODULES:
        for name, kernel in kernels(_ext.image(module, ARCHITECTURE)).items():
            if name.startswith("linear_"):
                yield _report(module.removesuffix("_m8n8k4"), kernel)


def as_line(report: Report) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(report), "of_memory": round(report.of_memory, 2)}


def _report(kind: str, kernel: Kernel) -> Report:
    _, _, warps, *variant = kernel.name.split("_")  # linear_x8_w4_blocks
    per_loop = UNITS * UNIT_BYTES[" ".join([kind, *variant])]
    rate = per_loop * MULTIPROCESSORS * SUB_CORES * CLOCK
    return Report(
        f"{kind} {kernel.name}",
        kernel.registers,
        kernel.stack_bytes,
        kernel.shared_bytes,
        _blocks(kernel, int(warps[1:])),
        kernel.loop.instructions,
        kernel.loop.products,
        kernel.loop.loads_128,
        rate / kernel.loop.instructions,
        rate / (kernel.loop.products * PRODUCT_CYCLES),
    )


def _blocks(kernel: Kernel, warps: int) -> int:
    """Blocks that fit on a multiprocessor."""
    registers = -(-kernel.registers // REGISTER_UNIT) * REGISTER_UNIT * 32 * warps
    return min(
        REGISTERS // registers, SHARED_BYTES // max(kernel.shared_bytes, 1), WARPS // warps, BLOCKS
    )
