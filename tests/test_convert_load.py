"""A converted checkpoint gives the very model that its source gives, and its arrays go straight to their devices.

Oracle: the model loaded from the source checkpoint, bit for bit; the source's tensors for restored arrays. Four CPU devices.
Not covered: the written form (test_convert_form), host memory (test_convert_memory).
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from checkpoints import SMALL, Style, tensor_specs, write_checkpoint
from conversions import (
    FOUR,
    QWEN_27B,
    assert_same_leaves,
    bits,
    converted,
    flattened,
    host_tensors,
    load,
    parts,
)
from tiny_engine import GREEDY, PROMPTS, ids_of, tiny

import onecat_jax
from onecat_jax.errors import CheckpointError, EngineError
from onecat_jax.loading.orbax import restore_canonical
from onecat_jax.loading.orbax.canonical import arrays_of, values_of
from onecat_jax.loading.orbax.convert import convert
from onecat_jax.sharding import Placement

STYLES = {
    "bfloat16": Style(),
    "float16": Style(dtype=np.float16),
    "float32": Style(dtype=np.float32),
    "modelopt": Style(naming="modelopt"),
    "compressed-tensors": Style(naming="compressed-tensors"),
}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_device_weights_are_those_of_the_source(tmp_path: Path, style: Style, ranks: int):
    source, out = converted(tmp_path, FOUR, style)
    assert_same_leaves(load(out, ranks), load(source, ranks))


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("naming", ["dense", "modelopt"])
def test_so_are_tied_ones_and_those_of_plain_jax(tmp_path: Path, naming: Any, ranks: int):
    config = replace(FOUR, tie_word_embeddings=True)
    source, out = converted(tmp_path, config, Style(naming=naming))
    arguments = {"dtype": "bfloat16", "backend": "plain"}
    assert_same_leaves(load(out, ranks, **arguments), load(source, ranks, **arguments))


def test_greedy_tokens_are_those_of_the_source(tmp_path: Path):
    convert("tiny", tmp_path / "out")
    llm = onecat_jax.LLM(
        model=str(tmp_path / "out"),
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=128,
    )
    found = llm.generate(list(PROMPTS), GREEDY)
    wanted = tiny().generate(list(PROMPTS), GREEDY)
    assert [ids_of(output) for output in found] == [ids_of(output) for output in wanted]


def test_what_does_not_divide_is_refused_with_numbers(tmp_path: Path):
    _, out = converted(tmp_path, SMALL)
    for attempt in (lambda: load(out, 4), lambda: restore_canonical(out, Placement.of(4))):
        with pytest.raises(EngineError, match="tensor_parallel_size is 4, which doesn't divide"):
            attempt()


def test_scale_groups_are_not_cut_through(tmp_path: Path):
    """96 features over four ranks are 24 each, one group and a half."""
    config = replace(FOUR, intermediate_size=96)
    _, out = converted(tmp_path, config, Style(naming="modelopt"))
    for attempt in (lambda: load(out, 4), lambda: restore_canonical(out, Placement.of(4))):
        with pytest.raises(EngineError, match=r"is 4, which leaves 24 of K = 96 .*multiple of 16"):
            attempt()


# Restored as JAX arrays


ONE_HEAD = replace(FOUR, num_key_value_heads=1)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("config", [FOUR, ONE_HEAD, QWEN_27B], ids=["two", "one", "27B"])
def test_target_shardings_give_every_device_what_its_rank_holds(config: Any, ranks: int):
    """For every array of a model; key/value heads lie on neighbouring devices where there are fewer than ranks."""
    placement = Placement.of(ranks)
    for name, spec in tensor_specs(config).items():
        for form in ("dense", "nvfp4") if spec.kind == "linear" else ("dense",):
            for array in arrays_of(name, spec, form, np.dtype(np.float32)):
                held = array.sharding(placement).devices_indices_map(array.shape)
                for rank, device in enumerate(placement.devices):
                    found = [
                        part.indices(n) for part, n in zip(held[device], array.shape, strict=True)
                    ]
                    wanted = [(part.start, part.stop, 1) for part in array.extent(rank, ranks)]
                    assert found == wanted, (array.name, rank)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return converted(tmp_path_factory.mktemp("form"), FOUR, Style(naming="modelopt"))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_restored_arrays_hold_the_source_and_lie_where_they_are_wanted(
    folders: tuple[Path, Path], ranks: int
):
    source, out = folders
    placement = Placement.of(ranks)
    restored = dict(flattened(restore_canonical(out, placement)))
    tensors, specs = host_tensors(source), tensor_specs(FOUR)
    for name, tensor in tensors.items():
        form = "nvfp4" if "codes" in parts(tensor) else "dense"
        for array in arrays_of(name, specs[name], form, np.dtype(jnp.bfloat16)):
            found = restored.pop(array.name)
            assert bits(found) == bits(values_of(array, tensor, specs[name])), array.name
            assert found.sharding.device_set == set(placement.devices)
            for shard in found.addressable_shards:
                extent = array.extent(placement.devices.index(shard.device), ranks)
                assert bits(shard.data) == bits(np.asarray(found)[extent]), array.name
    assert not restored


def test_only_what_no_rank_splits_is_replicated(folders: tuple[Path, Path]):
    restored = dict(flattened(restore_canonical(folders[1], Placement.of(4))))
    whole = {
        name.rsplit(".", 2)[-2] for name, x in restored.items() if x.sharding.is_fully_replicated
    }
    norms = {"norm", "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm"}
    head = {"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}  # of the MTP head
    scales = {n.rsplit(".", 2)[-2] for n in restored if n.endswith("global_scale")}
    assert whole == norms | head | scales
    assert all(x.ndim == 0 for n, x in restored.items() if n.endswith("global_scale"))
    key = restored["layers.1.self_attn.k_proj.codes"]
    pieces = [shard.index[0].indices(64)[:2] for shard in key.addressable_shards]
    assert pieces == [(0, 32), (0, 32), (32, 64), (32, 64)]


def bytes_read() -> int:
    """What the storage library has read from files in this process."""
    metrics = tensorstore.experimental_collect_matching_metrics(
        "/tensorstore/kvstore/file/bytes_read"
    )
    return sum(value["value"] for metric in metrics for value in metric["values"])


@pytest.mark.parametrize("do", [load, lambda out, n: restore_canonical(out, Placement.of(n))])
def test_every_piece_is_read_once(tmp_path: Path, do: Callable[[Path, int], Any]):
    """Over four ranks, of which two share each key/value head: the bytes of the checkpoint, and a little for the index."""
    config = replace(FOUR, hidden_size=256, vocab_size=4096, mtp_num_hidden_layers=0)
    _, out = converted(tmp_path, config)
    stored = sum(
        array.nbytes for tensor in host_tensors(out).values() for array in parts(tensor).values()
    )
    before = bytes_read()
    do(out, 4)
    assert stored <= bytes_read() - before <= 1.1 * stored


DOCUMENT = Path(__file__).parents[1] / "docs" / "checkpoints.md"
EXAMPLES = [block.split("```")[0] for block in DOCUMENT.read_text().split("```python\n")[1:]]


@pytest.mark.parametrize("example", EXAMPLES)
def test_documented_ways_to_restore_give_arrays_over_four_devices(
    folders: tuple[Path, Path], example: str
):
    source, out = folders
    names: dict[str, Any] = {}
    exec(example.replace('"OUT', f'"{out}'), names)
    codes = names["params"]["layers"]["0"]["mlp"]["up_proj"]["codes"]
    assert [shard.data.shape for shard in codes.addressable_shards] == [(32, 32)] * 4
    assert bits(codes) == bits(parts(host_tensors(source)["layers.0.mlp.up_proj.weight"])["codes"])


def pointers(tree: Any) -> list[list[int]]:
    return [
        [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
        for array in jax.tree.leaves(tree)
    ]


def changed(tree: Any) -> Any:
    """Every array replaced by one of the same shape and dtype."""
    return jax.tree.map(lambda x: x ^ 1 if x.dtype == jnp.uint8 else -x, tree)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_restored_arrays_are_donated(folders: tuple[Path, Path], ranks: int):
    """An update in place: every buffer is reused, and none is left. JAX's warning would fail this test."""
    tree = restore_canonical(folders[1], Placement.of(ranks))
    before = pointers(tree)
    after = jax.jit(changed, donate_argnums=0)(tree)
    assert all(array.is_deleted() for array in jax.tree.leaves(tree))
    assert pointers(after) == before


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_so_are_the_weights_that_are_built_from_them(folders: tuple[Path, Path], ranks: int):
    params = load(folders[1], ranks)
    jax.block_until_ready(jax.jit(changed, donate_argnums=0)(params))
    assert all(array.is_deleted() for array in jax.tree.leaves(params))


def test_only_a_converted_folder_is_restored(tmp_path: Path):
    source = write_checkpoint(tmp_path / "source", SMALL)
    with pytest.raises(CheckpointError, match="isn't a converted checkpoint; run onecat convert"):
        restore_canonical(source, Placement.of(1))


def test_opening_and_reading_headers_needs_no_orbax(folders: tuple[Path, Path]):
    """`info` of a converted checkpoint doesn't wait for it."""
    code = (
        "import sys\nfrom onecat_jax.cli.model_report import build_report\n"
        "from onecat_jax.config import EngineConfig\n"
        f"build_report({str(folders[1])!r}, EngineConfig())\n"
        "print([name for name in ('orbax', 'tensorstore') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
