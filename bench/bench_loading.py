"""How fast a checkpoint is loaded, against the disk's own sequential rate.

    python bench/bench_loading.py [--layers 8] [--repeats 3] [--backend auto|plain] [--folder DIR] [--out FILE]

Contract. A synthetic NVFP4 checkpoint of the 27B geometry with few layers (8 make 2.05 GB, in shards of 256 MB, in the order
of layers as exporters write them) is written to a temporary folder and flushed. Then in turn, `repeats` times after one round
that isn't counted: all files are read front to back with large reads; the checkpoint is opened, its sources found, and its
weights packed and placed on the default device by `load_model`, as the engine does it.

Before each of the two the files are dropped from the page cache (POSIX_FADV_DONTNEED, which needs no privileges), and the bench
stops unless mincore says that less than 1 % of them is still there. Then 1.5 times their size of memory is written to and given
back: a virtual machine may have lent its free memory to the host, which takes a second per GB to return it, whoever asks.

Rates are bytes of the files by wall time; the ratio is that of medians. A disk that the host of a virtual machine caches is
read faster than it spins, which makes the peer harder to reach, not easier.
"""

import argparse
import ctypes
import gc
import json
import math
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from conditions import ROOT, Conditions, append

from onecat_jax.config import EngineConfig
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import load_model
from onecat_jax.models.qwen3_5 import ModelConfig, tensor_specs
from onecat_jax.sharding import Placement

MODEL = ModelConfig(
    vocab_size=16384,
    hidden_size=5120,
    intermediate_size=17408,
    layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention"),
    num_attention_heads=24,
    num_key_value_heads=4,
    head_dim=256,
    rotary_dim=64,
    rope_theta=1e7,
    linear_num_key_heads=16,
    linear_num_value_heads=48,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    max_position_embeddings=262144,
    mtp_num_hidden_layers=0,
    eos_token_id=(1,),
)
SHARD = 256 << 20  # bytes
READ = 8 << 20
DENSE = ("lm_head.weight", "in_proj_a.weight", "in_proj_b.weight")

Stored = dict[str, tuple[str, tuple[int, ...]]]  # name -> dtype and shape


def stored(config: ModelConfig) -> Stored:
    """What a ModelOpt export holds, in its order."""
    found: Stored = {}
    for name, spec in tensor_specs(config).items():
        full = name if name.startswith("lm_head") else f"model.{name}"
        if spec.kind != "linear" or name.endswith(DENSE):
            found[full] = ("BF16", spec.shape)
            continue
        n, k = spec.shape
        found[full] = ("U8", (n, k // 2))
        found[f"{full}_scale"] = ("F8_E4M3", (n, k // 16))
        found[f"{full}_scale_2"] = ("F32", ())
    return found


def nbytes(entry: tuple[str, tuple[int, ...]]) -> int:
    dtype, shape = entry
    return math.prod(shape) * {"BF16": 2, "F32": 4}.get(dtype, 1)


def values(rng: np.random.Generator, entry: tuple[str, tuple[int, ...]]) -> bytes:
    """Random codes; scales and dense values that are no NaN."""
    dtype, _ = entry
    if dtype == "F32":
        return np.float32(0.01).tobytes()
    size = nbytes(entry)
    if dtype == "BF16":
        return rng.integers(0x3C00, 0x3D00, size // 2, dtype=np.uint16).tobytes()
    low, high = (0x30, 0x40) if dtype == "F8_E4M3" else (0, 256)
    return rng.integers(low, high, size, dtype=np.uint8).tobytes()


def write(folder: Path, config: ModelConfig) -> list[Path]:
    """The shards, flushed to disk, with index and config.json."""
    rng = np.random.default_rng(0)
    shards: list[Stored] = [{}]
    for name, entry in stored(config).items():
        if sum(map(nbytes, shards[-1].values())) + nbytes(entry) > SHARD and shards[-1]:
            shards.append({})
        shards[-1][name] = entry
    paths, weight_map = [], {}
    for at, shard in enumerate(shards):
        path = folder / f"model-{at + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(path, shard, rng)
        paths.append(path)
        weight_map |= dict.fromkeys(shard, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(asdict(config)))
    return paths


def write_shard(path: Path, shard: Stored, rng: np.random.Generator) -> None:
    header, at = {}, 0
    for name, (dtype, shape) in shard.items():
        size = nbytes((dtype, shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for entry in shard.values():
            file.write(values(rng, entry))
        file.flush()
        os.fsync(file.fileno())


def drop_from_cache(paths: Sequence[Path]) -> None:
    """Raises RuntimeError if the system kept them."""
    gc.collect()  # mapped pages stay
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    kept = sum(resident(path) for path in paths) / len(paths)
    if kept > 0.01:
        raise RuntimeError(f"{kept:.0%} of the files are still in the page cache")


def touch_memory(size: int) -> None:
    """Writes to so much fresh memory and gives it back to the system."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, size, flags=flags) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


def resident(path: Path) -> float:
    """The part of a file that is in the page cache."""
    size = path.stat().st_size
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        found = libc.mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(size),
            ctypes.c_void_p(pages.ctypes.data),
        )
        del view
    if found:
        raise OSError(ctypes.get_errno(), "mincore")
    return float((pages & 1).mean())


def read_all(paths: Sequence[Path]) -> None:
    """Front to back, into one buffer."""
    buffer = memoryview(bytearray(READ))
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)


def load_all(folder: Path, config: ModelConfig, engine: EngineConfig) -> None:
    """To packed weights on the device."""
    checkpoint = Checkpoint.open(folder)
    sources = find_sources(checkpoint, tensor_specs(config))
    placement = Placement.of(engine.tensor_parallel_size)
    load_model(checkpoint, sources, config, engine, lambda *_: None, placement)


def seconds(work: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def rounds(
    folder: Path, paths: Sequence[Path], config: ModelConfig, args: argparse.Namespace
) -> Iterator[tuple[float, float]]:
    """Seconds of (reading, loading), the first of them warm-up."""
    engine = EngineConfig(backend=args.backend)
    size = sum(path.stat().st_size for path in paths)

    def prepare() -> None:
        drop_from_cache(paths)
        touch_memory(size * 3 // 2)

    for _ in range(args.repeats + 1):
        prepare()
        reading = seconds(read_all, paths)
        prepare()
        yield reading, seconds(load_all, folder, config, engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8, help="a multiple of 4")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--folder", help="where the checkpoint is written; a temporary place")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "loading.jsonl")
    args = parser.parse_args()
    config = replace(MODEL, layer_types=MODEL.layer_types * (args.layers // 4))
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        paths = write(folder, config)
        size = sum(path.stat().st_size for path in paths)
        _, *found = rounds(folder, paths, config, args)
    disk, loader = ([size / s / 1e6 for s in column] for column in zip(*found, strict=True))
    row = {
        "bench": "loading",
        "backend": args.backend,
        "bytes": size,
        "disk_mb_s": [round(rate, 1) for rate in disk],
        "loader_mb_s": [round(rate, 1) for rate in loader],
        "ratio": round(statistics.median(loader) / statistics.median(disk), 3),
    }
    print(json.dumps(row))
    command = f"bench/bench_loading.py --backend {args.backend} --repeats {args.repeats}"
    append(args.out, Conditions(command), row)


if __name__ == "__main__":
    main()
