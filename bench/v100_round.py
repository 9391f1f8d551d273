"""Compiles the DFlash2 round of Qwen3.8-27B for V100s, on a machine without a GPU, and reads the optimised HLO.

    python bench/v100_round.py [--ranks 4] [--rows 1] [--context 4096] [--json] [--hlo FILE]

Needs jax-cuda12-plugin (`pip install "onecat-jax[cuda12]"`), no driver. Nothing is run: kernels are counted, not timed, and the
library's choice of algorithms on a real V100 may differ.
"""

import argparse
import importlib.util
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from optimised_hlo import Instruction, computations, count, in_place, loops, running

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
LARGE = 16 << 20  # bytes: twice the float32 logits of 8 rows
COUNTS = 100_000  # elements from which on an array is a cache or a weight: more than rows of a round have


def report(compiled: Any, held: set[tuple[int, ...]], layers: set[tuple[int, ...]]) -> dict:
    """What the optimised HLO says.

    Args:
      compiled: the launch.
      held: shapes of the caches and weights that lie on a device between launches.
      layers: shapes of single layers of the weights.
    """
    parts, memory = computations(compiled.as_text()), compiled.memory_analysis()
    bodies = loops(parts)
    kernels = {body: count(parts, body) for body in bodies}
    block = max(bodies, key=lambda body: sum(map(_nvfp4, parts[body])))
    made = [one for one in running(parts) if one.starts and not in_place(one, parts)]
    targets = (one.target for one in running(parts, block))
    needed = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    return {
        "kernels_per_superblock": {**asdict(kernels[block]), "total": kernels[block].total},
        "calls_per_superblock": dict(Counter(target for target in targets if target)),
        "kernels_of_loops": {body: found.total for body, found in kernels.items()},
        "copies_of_caches_or_weights": _listed(one for one in made if _made_of(one, held)),
        "copies_of_layers": _listed(one for one in made if _made_of(one, layers)),
        "large_buffers": _listed(one for one in made if one.nbytes >= LARGE),
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "fits": needed <= MEMORY,
    }


def _nvfp4(one: Instruction) -> bool:
    return (one.target or "").startswith("onecat_nvfp4_linear")


def _made_of(one: Instruction, shapes: set[tuple[int, ...]]) -> bool:
    """Whether a result has one of the shapes, axes of one left out."""
    return any(_dims(shape) in shapes for shape in one.shapes)


def _dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim for dim in shape if dim != 1)


def _listed(found: Iterable[Instruction]) -> dict[str, int]:
    return dict(Counter(f"{one.kind} {one.shape}" for one in found))


def toolkit() -> Path:
    """The folder of the CUDA 12 assembler: one that is installed elsewhere may be too new for compute capability 7.0."""
    found = importlib.util.find_spec("nvidia.cuda_nvcc")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            "the CUDA 12 assembler isn't installed: pip install 'onecat-jax[cuda12]' (package nvidia-cuda-nvcc-cu12)"
        )
    return Path(found.submodule_search_locations[0])


def local_shapes(tree: Any, first: int = 0) -> set[tuple[int, ...]]:
    """Shapes on one rank, from axis `first` on, axes of one left out; small arrays aren't listed."""
    import jax

    shapes = (leaf.sharding.shard_shape(leaf.shape)[first:] for leaf in jax.tree.leaves(tree))
    return {_dims(shape) for shape in shapes if math.prod(shape) >= COUNTS}


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

    def one(spec: Any, leaf: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def placed(specs: Any, tree: Any) -> Any:
        each = partial(jax.tree.map, is_leaf=lambda x: isinstance(x, PartitionSpec))
        return each(lambda spec, part: jax.tree.map(partial(one, spec), part), specs, tree)

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
    stacks = params.target.segments
    held, layers = local_shapes((params, state)), local_shapes(stacks, first=1)
    found = {
        "jax": jax.__version__,
        "ranks": args.ranks,
        "rows": args.rows,
        "context": args.context,
        "seconds": round(time.monotonic() - begin, 1),
        **report(compiled, held, layers),
    }
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
