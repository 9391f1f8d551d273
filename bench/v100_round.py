"""Compiles the DFlash2 round of Qwen3.8-27B for V100s, on a machine without a GPU, and reads the optimised HLO.

    python bench/v100_round.py [--ranks 4] [--rows 1] [--context 4096] [--json] [--hlo FILE]

Needs jax-cuda12-plugin (`pip install "onecat-jax[cuda12]"`), no driver. Nothing is run: kernels are counted, not timed, and the
library's choice of algorithms on a real V100 may differ.
"""

import argparse
import importlib.util
import json
import os
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

# From NVIDIA's data sheet of the V100 SXM2 32 GB, and the limits of compute capability 7.0 in the CUDA programming guide.
V100 = """
gpu_device_info {
  cuda_compute_capability { major: 7 } name: "Tesla V100" device_vendor: "NVIDIA Corporation"
  core_count: 80 fpus_per_core: 64 clock_rate_ghz: 1.53
  device_memory_size: 34000000000 memory_bandwidth: 898048000000 l2_cache_size: 6291456 ecc_enabled: true
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 98304 shared_memory_per_core: 98304
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64 device_address_bits: 64
  driver_version: "12.9.0" runtime_version: "12.9.0" compile_time_toolkit_version: "12.9.0" dnn_version: "9.10.2"
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 2 } device_description_str: "Tesla V100"
"""
MEMORY = 32e9  # bytes of a V100, as sold
LARGE = 16 << 20  # bytes: above the rows of a round, below the caches and weights of a layer
_SIZES = {"pred": 1, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "f16": 2, "bf16": 2, "s16": 2}
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:to_apply|body|calls)=%?([\w.-]+)")
_INNER = re.compile(
    r"(?:to_apply|body|condition|calls|true_computation|false_computation)=(%?[\w.-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
_BRANCHES = re.compile(r"(?:branch_computations=\{|true_computation=|false_computation=)([^}]*)")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
# Instructions that start no kernel.
_FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "iota", "after-all"}


@dataclass(frozen=True)
class Instruction:
    name: str
    shape: str  # as printed
    kind: str
    line: str

    @property
    def nbytes(self) -> int:
        total = 0
        for dtype, dims in _SHAPE.findall(self.shape):
            count = 1
            for dim in filter(None, dims.split(",")):
                count *= int(dim)
            total += count * _SIZES.get(dtype, 8 if dtype.endswith("64") else 4)
        return total


def computations(hlo: str) -> dict[str, list[Instruction]]:
    """Instructions of each computation by its name; the program's own is "ENTRY"."""
    found: dict[str, list[Instruction]] = {}
    name = ""
    for line in hlo.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = "ENTRY" if line.startswith("ENTRY") else line.split()[0].lstrip("%")
            found[name] = []
        elif match := _INSTRUCTION.match(line):
            found[name].append(Instruction(*match.groups(), line))
    return found


@dataclass(frozen=True)
class Kernels:
    """What a computation starts, the bodies of loops inside it left out; of a condition its largest branch."""

    custom: int = 0
    fusions: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return self.custom + self.fusions + self.other

    def __add__(self, other: "Kernels") -> "Kernels":
        return Kernels(
            self.custom + other.custom, self.fusions + other.fusions, self.other + other.other
        )


def count(parts: dict[str, list[Instruction]], name: str) -> Kernels:
    found = Kernels()
    for one in parts[name]:
        if one.kind == "custom-call":
            found += Kernels(custom=1)
        elif one.kind == "fusion":
            found += Kernels(fusions=1)
        elif one.kind in ("call", "async-start"):
            found += count(parts, _CALLED.findall(one.line)[-1])
        elif one.kind == "conditional":
            branches = re.findall(r"[\w.-]+", " ".join(_BRANCHES.findall(one.line)))
            found += max((count(parts, b) for b in branches if b in parts), key=lambda k: k.total)
        elif one.kind != "while" and one.kind not in _FREE:
            found += Kernels(other=1)
    return found


def bodies(parts: dict[str, list[Instruction]]) -> list[str]:
    """Bodies of all loops that run."""
    found = []
    for name in sorted(running(parts)):
        matches = (re.search(r"body=%?([\w.-]+)", one.line) for one in parts[name])
        found.extend(match[1] for match in matches if match)
    return found


def superblock(parts: dict[str, list[Instruction]]) -> str:
    """The body of the loop over the target's superblocks: the one with most NVFP4 linears."""
    return max(bodies(parts), key=lambda body: sum(_nvfp4(one) for one in _flat(parts, body)))


def _flat(parts: dict[str, list[Instruction]], name: str) -> list[Instruction]:
    found = list(parts[name])
    for one in parts[name]:
        if one.kind in ("call", "async-start"):
            found.extend(_flat(parts, _CALLED.findall(one.line)[-1]))
    return found


def _nvfp4(one: Instruction) -> bool:
    return "onecat_nvfp4_linear" in one.line


def report(compiled: Any, caches: set[tuple[int, ...]], weights: set[tuple[int, ...]]) -> dict:
    """What the optimised HLO says.

    Args:
      compiled: the launch.
      caches, weights: shapes of what lies on a device between launches.
    """
    parts = computations(compiled.as_text())
    block, memory = superblock(parts), compiled.memory_analysis()
    started = [one for name in running(parts) for one in parts[name] if one.kind not in _FREE]
    large = [one for one in started if one.nbytes >= LARGE and not _in_place(one, parts)]
    targets = (_TARGET.search(one.line) for one in _flat(parts, block))
    held = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    return {
        "kernels_per_superblock": {
            **asdict(count(parts, block)),
            "total": count(parts, block).total,
        },
        "calls_per_superblock": dict(Counter(match[1] for match in targets if match)),
        "kernels_of_loops": {body: count(parts, body).total for body in bodies(parts)},
        "copies_of_caches_or_weights": [
            f"{one.kind} {one.shape}" for one in large if _dims(one.shape) in caches | weights
        ],
        "large_buffers": dict(Counter(f"{one.kind} {one.shape}" for one in large)),
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "fits": held <= MEMORY,
    }


def running(parts: dict[str, list[Instruction]]) -> set[str]:
    """Computations whose instructions are run one by one: the program, loops, calls and branches."""
    found, todo = set(), ["ENTRY"]
    while todo:
        name = todo.pop()
        if name in found or name not in parts:
            continue
        found.add(name)
        for one in parts[name]:
            if one.kind in ("while", "call", "async-start", "conditional"):
                todo.extend(
                    re.findall(r"[\w.-]+", " ".join(a or b for a, b in _INNER.findall(one.line)))
                )
    return found


def _in_place(one: Instruction, parts: dict[str, list[Instruction]]) -> bool:
    """Whether it changes an operand, or gives on what others made."""
    if one.kind in ("while", "call", "conditional", "dynamic-update-slice"):
        return True
    if "output_to_operand_aliasing" in one.line:
        return True
    called = _CALLED.search(one.line)
    inner = parts[called[1]] if one.kind == "fusion" and called else []
    return any(i.kind in ("dynamic-update-slice", "scatter") for i in inner)


def _dims(shape: str) -> tuple[int, ...]:
    match = _SHAPE.match(shape)
    return tuple(int(n) for n in match[2].split(",") if n) if match else ()


def toolkit() -> Path:
    """The folder of the CUDA 12 assembler: one that is installed elsewhere may be too new for compute capability 7.0."""
    found = importlib.util.find_spec("nvidia.cuda_nvcc")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            "the CUDA 12 assembler isn't installed: pip install 'onecat-jax[cuda12]' (package nvidia-cuda-nvcc-cu12)"
        )
    return Path(found.submodule_search_locations[0])


def local_shapes(tree: Any) -> set[tuple[int, ...]]:
    """Shapes on one rank."""
    import jax

    return {leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(tree)}


def compile_round(ranks: int, rows: int, context: int) -> tuple[Any, Any]:
    """The compiled launch and its arguments."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from synthetic import synthetic_round

    from onecat_jax.custom_calls.dispatch import Target
    from onecat_jax.sharding import TP, Placement
    from onecat_jax.speculation.launch import launch
    from onecat_jax.speculation.params import engine_specs

    host = Placement(tuple(jax.devices("cpu")[:ranks]))
    made = synthetic_round(Target("gpu", 70), host, rows=rows, context=context)
    found = topologies.get_topology_desc(
        "v100", platform="cuda", target_config=V100, topology=f"1x1x{ranks}"
    )
    gpus = Placement(tuple(found.devices[:ranks]))
    mesh = Mesh(np.array(gpus.devices), (TP,))
    params, state, *operands = made.arguments
    whole = PartitionSpec()
    split = (engine_specs(params), state.specs(TP)) if ranks > 1 else (whole, whole)

    def placed(spec: Any, tree: Any) -> Any:
        def one(s: Any, leaf: Any) -> Any:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, s))

        if isinstance(spec, PartitionSpec):
            return jax.tree.map(partial(one, spec), tree)
        return jax.tree.map(
            lambda s, t: jax.tree.map(partial(one, s), t),
            spec,
            tree,
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )

    arguments = (placed(split[0], params), placed(split[1], state), *placed(whole, operands))
    step = partial(launch, options=made.options, width=made.width, k=None)
    in_specs = (*split, *[whole] * len(operands))
    step = gpus.shard_map(step, in_specs=in_specs, out_specs=(split[1], whole))
    return jax.jit(step, donate_argnums=1).lower(*arguments).compile(), arguments


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2, 4))
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--json", action="store_true", help="one line for machines")
    parser.add_argument("--hlo", help="where the optimised HLO goes")
    args = parser.parse_args()
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={args.ranks} --xla_gpu_cuda_data_dir={toolkit()}"
    )
    begin = time.monotonic()
    compiled, arguments = compile_round(args.ranks, args.rows, args.context)
    if args.hlo:
        with open(args.hlo, "w", encoding="utf-8") as file:
            file.write(compiled.as_text())
    import jax

    params, state, *_ = arguments
    caches, weights = local_shapes(state), local_shapes(params)
    found = {
        "jax": jax.__version__,
        "ranks": args.ranks,
        "rows": args.rows,
        "context": args.context,
        "seconds": round(time.monotonic() - begin, 1),
        **report(compiled, caches, weights),
    }
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
