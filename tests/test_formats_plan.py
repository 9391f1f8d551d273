"""The memory plan of every weight format. Oracles: bytes of the arrays that are really placed on each device; for what `info`
says about cards that aren't here, the plan that loading would make on devices of that size.

Not covered: the size of the largest temporary, which is a bound and no law.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from checkpoints import tensor_specs
from format_models import MODEL, Layout, Model, usual, write_model
from format_writers import FORMATS
from test_loading_memory import QWEN_27B
from test_sharding_plan import groups

from onecat_jax.cli.main import main
from onecat_jax.cli.model_report import build_report
from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.dispatch import Policy, Target
from onecat_jax.errors import CapacityError, EngineError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.cards import V100_MIB, pool_fraction, v100_bound
from onecat_jax.loading.formats import DenseSource, FP8Source, NVFP4Source, Source
from onecat_jax.loading.formats.awq import AWQSource
from onecat_jax.loading.formats.packed import PackedSource
from onecat_jax.loading.memory_plan import requirements
from onecat_jax.loading.planning import plan_memory, plan_request
from onecat_jax.loading.sources import find_sources
from onecat_jax.loading.weight_sizes import DeviceSizes
from onecat_jax.model_loader import load_model
from onecat_jax.models.spec import Section, TensorSpec
from onecat_jax.sharding import Placement

# Sizes that no layout likes: rows that need padding, K that only plain JAX takes.
ODD = replace(MODEL, vocab_size=100, intermediate_size=112)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def write(form: str) -> Model:
        return write_model(tmp_path_factory.mktemp("model"), usual(form))

    return write


def assert_planned(model: Model, ranks: int, backend: str = "auto") -> None:
    """Group by group, on every device."""
    checkpoint = Checkpoint.open(model.folder)
    sources = find_sources(checkpoint, tensor_specs(model.config))
    placement = Placement.of(ranks)
    engine = EngineConfig(tensor_parallel_size=ranks, backend=backend, max_model_len=64)  # type: ignore[arg-type]
    loaded = load_model(checkpoint, sources, model.config, engine, lambda *_: None, placement)
    request = plan_request(engine, model.config, "cpu")
    planned = requirements(model.config, sources, request).weights
    told = {row["name"]: row for row in build_report(str(model.folder), engine)["groups"]}
    for device in placement.devices:
        placed = groups(loaded.params, device)
        assert {name: planned[name] for name in placed} == placed
        assert {name: told[name]["device_bytes"] for name in placed} == placed
    for row in told.values():
        assert sum(row["format_bytes"].values()) == row["device_bytes"]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("form", FORMATS)
def test_planned_bytes_are_those_on_every_device(written, form: str, ranks: int):
    if form == "int4 order" and ranks > 1:
        with pytest.raises(EngineError, match="activation order"):
            assert_planned(written(form), ranks)
        return
    assert_planned(written(form), ranks)


def storage_of(form: str) -> str:
    """How people are told of it."""
    if form.startswith("nvfp4"):
        return "nvfp4"
    if form.startswith("fp8"):
        return f"fp8 per {form.split()[1].strip(',').replace('channel', 'row')}"
    record = FORMATS[form].record([])
    quark = record.get("global_quant_config", {}).get("weight", {})
    packed = record.get("config_groups", {}).get("group_0", {}).get("weights", {})
    group = {**quark, **packed, **record}["group_size"]
    zeros = record.get("zero_point", False) or not packed.get("symmetric", True)
    return f"int4 in groups of {group}" + (" with zero points" if zeros else "")


@pytest.mark.parametrize("form", FORMATS)
def test_info_prints_formats_and_their_bytes_and_the_contexts_of_six_machines(
    written, form, capsys
):
    assert main(["info", str(written(form).folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for group, count in (("GDN linears", 9), ("MLP", 12), ("attention linears", 4)):
        (line,) = [x for x in lines if x.startswith(f"  {group} ") and " M " in x]
        assert re.search(rf" {count} {re.escape(storage_of(form))} \(\d+\.\d \w+\)", line)
    contexts = [x.split(",")[:2] for x in lines if x.startswith("  V100 ")]
    assert contexts == [
        [f"  V100 {size} GB", f" {count}"]
        for size in V100_MIB
        for count in ("one GPU", "2 GPUs", "4 GPUs")
    ]


@pytest.mark.parametrize("backend", ["auto", "plain"])
@pytest.mark.parametrize("form", ["fp8 channel", "fp8 tensor", "fp8 block", "nvfp4 compressed"])
def test_padding_is_planned(tmp_path: Path, form: str, backend: str):
    """The head is quantised too."""

    def layout(module: str) -> str:
        return form if module == "lm_head" else usual(form)(module)

    assert_planned(write_model(tmp_path, layout, config=ODD), 1, backend)


def mixture(*forms: tuple[str, str]) -> Layout:
    """Formats by the ends of module names."""

    def layout(module: str) -> str:
        found = (form for end, form in forms if module.endswith(end))
        return usual(next(found, ""))(module)

    return layout


MIXTURES: dict[str, tuple[Layout, Mapping[str, object]]] = {
    "scales per tensor beside blocks": (
        mixture(("gate_proj", "fp8 block, modelopt"), ("up_proj", "fp8 tensor")),
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.layers.{i}.mlp.{name}": {"quant_algo": algorithm}
                for i in range(4)
                for name, algorithm in (("gate_proj", "FP8_PB_WO"), ("up_proj", "FP8"))
            },
        },
    ),
    "groups of two sizes and scales of two dtypes": (
        mixture(("gate_proj", "int4"), ("up_proj", "int4 zeros")),
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {
                    "targets": ["re:.*gate_proj"],
                    "weights": {"num_bits": 4, "type": "int", "symmetric": True},
                },
                "b": {
                    "targets": ["re:.*up_proj"],
                    "weights": {"num_bits": 4, "type": "int", "symmetric": False},
                },
            },
        },
    ),
}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("kind", MIXTURES)
def test_siblings_of_two_granularities_are_planned_as_they_are_packed(tmp_path, kind, ranks):
    layout, record = MIXTURES[kind]
    assert_planned(write_model(tmp_path, layout, record=record), ranks)


# Cards that aren't here


class FakeGPU:
    """What the plan asks of an empty GPU."""

    platform = "gpu"

    def __init__(self, number: int, pool: int):
        self.id, self.pool = number, pool

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": self.pool, "bytes_in_use": 0}


def of_layers(make: Callable[[object, str], Source]) -> Mapping[str, Source]:
    """A 27B model whose layers' linears, gates aside, are of one format."""
    return {
        name: make(spec, name)
        if spec.kind == "linear" and ".layers" in f".{name}" and "in_proj_a" not in name
        else DenseSource(spec, name)
        for name, spec in tensor_specs(QWEN_27B).items()
    }


MODELS = {
    "nvfp4": of_layers(NVFP4Source),  # type: ignore[arg-type]
    "fp8 block": of_layers(lambda spec, name: FP8Source(spec, name, scales="block")),  # type: ignore[arg-type]
    "fp8 row": of_layers(lambda spec, name: FP8Source(spec, name, scales="row")),  # type: ignore[arg-type]
    "awq": of_layers(
        lambda spec, name: AWQSource(spec, name, zero_point="z", group=128)  # type: ignore[arg-type]
    ),
    "int4 in groups of 32": of_layers(
        lambda spec, name: PackedSource(spec, name, zero_point="z", group=32, scale_dtype="F32")  # type: ignore[arg-type]
    ),
    "nvfp4 beside fp8": of_layers(
        lambda spec, name: NVFP4Source(spec, name) if ".mlp." in name else FP8Source(spec, name)  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("form", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("size", V100_MIB)
@pytest.mark.parametrize("kv", ["auto", "fp8_e4m3"])
def test_the_bound_for_a_card_is_what_loading_there_would_plan(form, ranks, size, kv):
    sources = MODELS[form]
    engine = EngineConfig(tensor_parallel_size=ranks, max_num_seqs=1, kv_cache_dtype=kv)
    bound = v100_bound(QWEN_27B, sources, replace(engine, max_num_seqs=4), size, ranks)
    pool = int(V100_MIB[size] * 2**20 * pool_fraction())
    devices = [FakeGPU(number, pool) for number in range(ranks)]
    if bound.max_model_len_one_request == 0:
        with pytest.raises(CapacityError):
            plan_memory(engine, QWEN_27B, sources, devices)  # type: ignore[arg-type]
        return
    plan = plan_memory(engine, QWEN_27B, sources, devices)  # type: ignore[arg-type]
    assert plan.request.max_model_len == pytest.approx(bound.max_model_len_one_request, rel=0.05)
    each = bound.max_model_len_each or engine.block_size
    four = replace(engine, max_num_seqs=4, max_model_len=each)
    if bound.max_model_len_each == 0:
        with pytest.raises(CapacityError):
            plan_memory(four, QWEN_27B, sources, devices)  # type: ignore[arg-type]
        return
    assert plan_memory(four, QWEN_27B, sources, devices).kv_tokens >= 4 * each * 0.95  # type: ignore[arg-type]


def test_a_model_that_cannot_be_split_says_why():
    odd = replace(QWEN_27B, vocab_size=248321)
    bound = v100_bound(odd, MODELS["nvfp4"], EngineConfig(), 16, 2)
    assert (bound.max_model_len_one_request, bound.max_model_len_each) == (0, 0)
    assert "doesn't divide vocab = 248321" in bound.reason


@pytest.mark.parametrize(("text", "fraction"), [(None, 0.75), ("0.95", 0.95), ("1", 1.0)])
def test_the_pool_is_what_jax_would_take(monkeypatch: pytest.MonkeyPatch, text, fraction):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    if text is not None:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", text)
    assert pool_fraction() == fraction


@pytest.mark.parametrize("text", ["", "much", "0", "-1", "1.5", "nan"])
def test_a_pool_that_is_no_fraction_is_refused(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", text)
    with pytest.raises(EngineError, match="a number above 0 and up to 1"):
        pool_fraction()


def test_layouts_of_a_v100_are_planned_where_there_is_none():
    """K of 1056 is whole units of 32 on CPU, and padded to 1088 for a GPU's units of 64."""
    spec = TensorSpec("linear", ((Section(None, 64, 64),), (Section(None, 1056, 1056),)))
    sources = {"layers.0.mlp.down_proj.weight": NVFP4Source(spec, "w")}
    for target, k in ((Target("cpu"), 1056), (Target("gpu", 70), 1088), (Target("gpu", 80), 1088)):
        (size,) = DeviceSizes("float16", policy=Policy(target=target)).of(sources).values()
        assert size == 64 * k // 2 + 64 * k // 16 + 64 * 4
