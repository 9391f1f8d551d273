"""Compares the goldens of tests/golden/dflash with the public implementations that are installed, and records by how much.

    python tests/oracle/compare_dflash_packages.py

`dflash` (its authors' inference model) is asked for the block's rows and the greedy walk, its key-value cache filled in two
pieces; `speculators` (a trainer) for the rows of the packed form, eager attention. Either in float64; both are adapters around
the packages' own model code and nothing else. versions.json gets the largest difference of each case, as a part of the range
of the rows, and the versions. Cases with a field that a package doesn't have are left out of its list.
"""

import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import DynamicCache
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

sys.path.insert(0, str(Path(__file__).parents[1]))

import dflash_equations as eq
import dflash_oracle_cases as cases
import dflash_oracle_weights as ow
from dflash_oracle_cases import DraftCase
from make_dflash_goldens import draft_of, wide

_UNKNOWN = {"attention_value_scale", "use_swa", "swa_window_size", "causal"}


def qwen_config(case: DraftCase, **more: Any) -> Qwen3Config:
    config = Qwen3Config(**case.config, **more)
    config.sliding_window = case.config.get("sliding_window")
    config._attn_implementation = "eager"
    return config


def known(case: DraftCase) -> bool:
    """Whether the dflash package has all fields of a case."""
    config = case.config
    named = set(config["dflash_config"]) | set(config)
    return not (case.mask_row or named & (_UNKNOWN | {"is_neox_style", "draft_vocab_size"}))


def renamed(case: DraftCase) -> dict[str, torch.Tensor]:
    tensors = {name: wide(w) for name, w in ow.weights(case).items()}
    return {f"{n}.weight" if n.endswith("codebook") else n: w for n, w in tensors.items()}


def by_dflash(case: DraftCase) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [Q, E] and greedy tokens [K] of the package's model; the context is fed in two pieces."""
    from dflash.model import DFlash2DraftModel, DFlashDraftModel

    second = "selector_rank" in case.config["dflash_config"]
    config = qwen_config(case)
    model = (DFlash2DraftModel if second else DFlashDraftModel)(config).double().eval()
    model.load_state_dict(renamed(case))
    if list(model.target_layer_ids) != draft_of(case).target_layers:
        raise ValueError(f"{case.name}: the package taps {model.target_layer_ids}")
    taps, place = torch.cat(list(wide(ow.taps(case))), -1)[None], torch.tensor(ow.anchor(case))
    rows = eq.embed(draft_of(case), wide(ow.embeddings(case)), place[None])
    cache, cut = DynamicCache(), case.context - 7
    hidden = None
    for start, stop in ((0, cut), (cut, case.context)):
        positions = torch.arange(start, stop + model.block_size)[None]
        hidden = model(
            position_ids=positions,
            noise_embedding=rows,
            target_hidden=taps[:, start:stop],
            past_key_values=cache,
            use_cache=True,
        )
        cache.crop(stop - cache.get_seq_length())
    head = torch.nn.Linear(*reversed(ow.head(case).shape), bias=False, dtype=torch.float64)
    head.weight.data = wide(ow.head(case))
    if second:
        tokens = model.propose(hidden[:, 1:], place[None], head, 0.0)[0]
    else:
        tokens = model.compute_logits(hidden[:, 1:], head).argmax(-1)
    return hidden[0], tokens[0]


def by_speculators(case: DraftCase) -> torch.Tensor:
    """Blocks [N, Q, E] of the trainer's packed form at the goldens' anchors."""
    from speculators.models.attention import create_float_mask
    from speculators.models.dflash import model_definitions as first
    from speculators.models.dflash.attention import create_anchor_block_mask_mod
    from speculators.models.dflash2 import model_definitions as second
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

    draft, config = draft_of(case), qwen_config(case)
    conv = case.config["dflash_config"].get("conv_kernel_size")
    more = {
        "block_size": draft.block_size,
        "conv_kernel_size": conv,
        "conv_group_size": case.config["dflash_config"].get("conv_group_size"),
    }
    anchors, length = torch.tensor(cases.ANCHORS), case.context
    places = (anchors[:, None] + torch.arange(draft.block_size)).flatten()
    eps = config.rms_norm_eps
    first_norm, last_norm = (_normed(Qwen3RMSNorm, draft[n], eps) for n in ("hidden_norm", "norm"))
    shared = first_norm(torch.cat(list(wide(ow.taps(case))), -1) @ draft["fc"].T)[None]
    x = eq.embed(draft, wide(ow.embeddings(case)), wide(ow.tokens(case))[anchors])
    x = x.flatten(0, 1)[None]
    turn = Qwen3RotaryEmbedding(config)(x, torch.cat([torch.arange(length), places])[None])
    for index in range(draft.layers):
        window = draft.window(index)
        mask, rows, keys = create_anchor_block_mask_mod(
            torch.zeros(length, dtype=torch.long), length, anchors, draft.block_size, window, True
        )
        visible = create_float_mask(mask, B=None, H=None, Q_LEN=rows, KV_LEN=keys, device="cpu")
        cls = second.Qwen3DFlash2DecoderLayer if conv else first.Qwen3DFlashDecoderLayer
        layer = cls(config, index, **(more if conv else {})).double().eval()
        prefix = f"layers.{index}."
        layer.load_state_dict(
            {n.removeprefix(prefix): w for n, w in draft.weights.items() if n.startswith(prefix)}
        )
        x = layer(
            hidden_states=x,
            target_hidden=shared,
            attention_mask=visible.double(),
            position_embeddings=turn,
        )
    return last_norm(x)[0].unflatten(0, (len(anchors), -1))


def _normed(cls: Any, weight: torch.Tensor, eps: float) -> torch.nn.Module:
    norm = cls(len(weight), eps).double()
    norm.weight.data = weight
    return norm


def apart(found: torch.Tensor, expected: Any) -> float:
    expected = torch.from_numpy(expected).double()
    return float((found - expected).abs().max() / (expected.max() - expected.min()))


def installed(name: str) -> SimpleNamespace | None:
    try:
        return SimpleNamespace(version=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return None


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    path = ow.GOLDEN / "versions.json"
    record = json.loads(path.read_text())
    compared = record.setdefault("compared_with", {})
    if package := installed("dflash"):
        found = {}
        for case in filter(known, cases.CASES):
            golden, (hidden, tokens) = ow.load_golden(case), by_dflash(case)
            same = bool((tokens.numpy() == golden.tokens).all())
            found[case.name] = {"rows": apart(hidden, golden.hidden), "same_tokens": same}
            print("dflash", case.name, found[case.name])
        compared["dflash"] = {"version": package.version, "cases": found} | libraries()
    if package := installed("speculators"):
        found = {}
        for name in ("v1_block16", "v2_taps2"):
            case = cases.CASES_BY_NAME[name]
            found[name] = {"rows": apart(by_speculators(case), ow.load_golden(case).packed)}
            print("speculators", name, found[name])
        compared["speculators"] = {"version": package.version, "cases": found} | libraries()
    path.write_text(json.dumps(record, indent=1) + "\n")


def libraries() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers")}


if __name__ == "__main__":
    main()
