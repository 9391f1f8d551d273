"""Models that can't be split are refused before a weight is read, with numbers. Oracle: the sentences, and a search over
all degrees with the geometry's own divisions."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from checkpoints import SMALL, Style, tensor_specs, write_checkpoint

from onecat_jax.cli import info
from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.linear import NVFP4Tensor
from onecat_jax.errors import EngineError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.formats import DenseSource, NVFP4Source, Source
from onecat_jax.loading.planning import plan_memory
from onecat_jax.loading.ranks import check_ranks
from onecat_jax.loading.safetensors_file import SafetensorsFile
from onecat_jax.loading.sources import find_sources
from onecat_jax.models.qwen3_5 import ModelConfig
from onecat_jax.models.slices import cut_tensor
from onecat_jax.sharding import Placement

# Four of everything; 96 features are 24 for each of four ranks, no whole scale groups.
FOUR = replace(SMALL, linear_num_key_heads=4)


def sources(config: ModelConfig, form: str = "dense") -> dict[str, Source]:
    """As `find_sources` would give them for a checkpoint whose linears of layers are all of one format."""
    return {
        name: (NVFP4Source if form == "nvfp4" and spec.kind == "linear" else DenseSource)(
            spec, name
        )
        for name, spec in tensor_specs(config).items()
        if name != "lm_head.weight"
    }


def refusal(config: ModelConfig, ranks: int, form: str = "dense") -> str:
    with pytest.raises(EngineError) as caught:
        check_ranks(config, sources(config, form), ranks)
    return str(caught.value)


def test_everything_that_does_not_divide_is_named_with_its_number_and_what_would_do():
    message = refusal(replace(FOUR, vocab_size=95, intermediate_size=94), 3)
    head, end = "tensor_parallel_size is 3, which doesn't divide ", ". It can be 1."
    assert message.startswith(head)
    assert message.endswith(end)
    assert set(message.removeprefix(head).removesuffix(end).split(", ")) == {
        "vocab = 95",
        "heads = 4",
        "kv_heads = 2",
        "key_heads = 4",
        "value_heads = 4",
        "mlp = 94",
    }
    assert refusal(FOUR, 8).endswith(
        "heads = 4, key_heads = 4, value_heads = 4. It can be 1, 2, 4."
    )
    assert "kv_heads" not in refusal(FOUR, 8)  # two of them would be repeated


def test_scale_groups_that_would_be_cut_through_are_named_once_for_all_layers():
    config = replace(FOUR, layer_types=SMALL.layer_types * 4)
    check_ranks(config, sources(config), 4)
    assert refusal(config, 4, "nvfp4") == (
        "tensor_parallel_size is 4, which leaves 24 of K = 96 input features of layers.0.mlp.down_proj.weight to a rank, where "
        "NVFP4 scales need a multiple of 16. It can be 1, 2."
    )


def test_every_kind_of_tensor_whose_groups_would_be_cut_is_named():
    config = replace(FOUR, head_dim=8, linear_value_head_dim=8, rotary_dim=4)
    message = refusal(config, 4, "nvfp4")
    for name, k in (("self_attn.o_proj", 32), ("linear_attn.out_proj", 32), ("mlp.down_proj", 96)):
        assert f"leaves {k // 4} of K = {k} input features of" in message
        assert name in message
    assert message.count("; and leaves") == 2


def test_a_tensor_that_is_not_placed_refuses_nothing():
    """The MTP head's own down projection is the only quantised tensor."""
    only_mtp = {
        name: source if name.startswith("mtp.") else DenseSource(source.spec, name)
        for name, source in sources(FOUR, "nvfp4").items()
    }
    check_ranks(FOUR, only_mtp, 4)


@pytest.mark.parametrize("form", ["dense", "nvfp4"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "keys", "ratio", "features"),
    [(12, 2, 12, 1, 192), (12, 3, 6, 2, 96), (8, 8, 8, 3, 256), (6, 1, 6, 1, 48), (1, 1, 1, 1, 16)],
)
def test_the_degrees_that_pass_are_those_that_divide(heads, kv_heads, keys, ratio, features, form):
    config = replace(
        SMALL,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=16,
        linear_num_key_heads=keys,
        linear_num_value_heads=keys * ratio,
        intermediate_size=features,
        vocab_size=96,
    )

    def divides(n: int) -> bool:
        each = [heads % n, keys % n, features % n, 96 % n, (n % kv_heads) * (kv_heads % n)]
        return not any(each) and (form == "dense" or n == 1 or features // n % 16 == 0)

    for ranks in range(1, 14):
        if divides(ranks):
            check_ranks(config, sources(config, form), ranks)
            continue
        allowed = ", ".join(str(n) for n in range(1, 14) if divides(n))
        assert refusal(config, ranks, form).endswith(f". It can be {allowed}.")


def test_cutting_through_a_scale_group_is_refused_by_the_cut_itself():
    spec = tensor_specs(FOUR)["layers.0.mlp.down_proj.weight"]
    tensor = NVFP4Tensor(np.zeros((64, 48), np.uint8), np.zeros((64, 6), np.uint8), 1.0)
    with pytest.raises(
        EngineError, match=r"is 4, which leaves 24 of K = 96 input features of w to"
    ):
        cut_tensor("w", tensor, spec, 1, 4)


def test_a_model_that_does_not_divide_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path))
    found = find_sources(checkpoint, tensor_specs(SMALL))
    monkeypatch.setattr(SafetensorsFile, "array", lambda *_: pytest.fail("a weight was read"))
    engine = EngineConfig(tensor_parallel_size=4)
    with pytest.raises(EngineError, match=r"doesn't divide key_heads = 2\. It can be 1, 2\."):
        plan_memory(engine, SMALL, found, jax.devices())


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, None])
def test_a_number_of_ranks_is_a_positive_whole_number(value: Any):
    with pytest.raises(
        EngineError, match=r"tensor_parallel_size is .*; a whole number of at least"
    ):
        EngineConfig(tensor_parallel_size=value)


def test_more_ranks_than_devices_are_refused_with_both_numbers():
    with pytest.raises(EngineError, match=r"tensor_parallel_size is 5, but JAX sees 4 cpu devices"):
        Placement.of(5)


def run_info(*words: str) -> int:
    parser = argparse.ArgumentParser()
    info.configure(parser)
    args = parser.parse_args(words)
    return args.run(args)


def test_info_plans_for_more_devices_than_there_are(tmp_path: Path, capsys):
    config = replace(
        FOUR,
        num_attention_heads=16,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        intermediate_size=256,
    )
    folder = str(write_checkpoint(tmp_path, config, Style(naming="modelopt")))
    assert run_info(folder, "--tensor-parallel-size", "16") == 0
    text = capsys.readouterr().out
    assert "plan on 16 devices like cpu:0" in text
    assert "per device, 16 ranks" in text
    assert "V100 16 GB, 16 GPUs, float16" in text
    assert "shared by 16 devices" in text
    assert run_info(folder, "--json", "--tensor-parallel-size", "16") == 0
    split = json.loads(capsys.readouterr().out)
    assert run_info(folder, "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert split["request"]["ranks"] == 16
    assert split["parameters"] == whole["parameters"]
    for name in ("MLP", "GDN linears", "embedding and head", "GDN state", "convolution window"):
        assert split["plan"]["groups"][name] < whole["plan"]["groups"][name] / 8


def test_info_refuses_a_degree_that_does_not_divide(tmp_path: Path):
    with pytest.raises(EngineError, match=r"tensor_parallel_size is 3, which doesn't divide"):
        run_info(str(write_checkpoint(tmp_path)), "--tensor-parallel-size", "3")
