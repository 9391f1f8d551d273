"""Makes tests/golden/parity from the PyTorch implementation (transformers), one file per case.

    python tests/oracle/make_goldens.py [CASE ...]

Needs torch and transformers; the tests read the files and need neither. float32, eager attention,
one thread. Without the optional kernel packages the model runs its own PyTorch code: chunks of 64
when it sees several tokens, the step recurrence when it continues from a cache with one.

versions.json records, besides versions, how far the oracle is from itself: `chunked_spread` and
`decode_spread` are the largest differences between its full forward and its own chunked prefills
and cached steps, as parts of the logit range (largest minus smallest logit of the full forward).
No test can ask for less.
"""

import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig

sys.path.insert(0, str(Path(__file__).parents[1]))

import oracle_weights as ow


def build(case: ow.Case) -> Qwen3_5ForCausalLM:
    """The PyTorch model of a case in float32.

    Raises:
      ValueError: a parameter of the model has no drawn weight, or the other way round.
    """
    config = Qwen3_5TextConfig(**case.config)
    config._attn_implementation = "eager"
    model = Qwen3_5ForCausalLM(config).float().eval()
    state = {name: torch.from_numpy(w) for name, w in ow.weights(case).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    allowed = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - allowed or unexpected:
        raise ValueError(f"{case.name}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


@torch.no_grad()
def full_logits(model: Qwen3_5ForCausalLM, ids: torch.Tensor) -> np.ndarray:
    """[T, V] of one forward without a cache; ids [T]."""
    return model(input_ids=ids[None], use_cache=False).logits[0].numpy()


@torch.no_grad()
def prefill(
    model: Qwen3_5ForCausalLM, ids: torch.Tensor, chunks: Sequence[int]
) -> tuple[np.ndarray, DynamicCache]:
    """Logits [V] of the last token and the cache, after ids [T] fed in pieces of these lengths."""
    if sum(chunks) != len(ids):
        raise ValueError(
            f"chunks {chunks} add up to {sum(chunks)}, the prompt has {len(ids)} tokens"
        )
    cache = DynamicCache(config=model.config)
    start = 0
    for piece in ids.split(list(chunks)):
        logits = _cached(model, piece, cache, start)[-1]
        start += len(piece)
    return logits.numpy(), cache


def _cached(
    model: Qwen3_5ForCausalLM, ids: torch.Tensor, cache: DynamicCache, start: int
) -> torch.Tensor:
    """Logits [T, V] of ids [T] at positions start, start + 1, ...; the cache is extended."""
    kinds = set(model.config.layer_types)
    # A cache without attention layers can't tell its length, which only the causal mask asks for.
    mask = None if ow.FULL in kinds else dict.fromkeys((ow.FULL, ow.LINEAR))
    positions = torch.arange(start, start + len(ids))[None]
    out = model(
        input_ids=ids[None],
        position_ids=positions,
        attention_mask=mask,
        cache=cache,
        use_cache=True,
    )
    return out.logits[0]


@torch.no_grad()
def decode(
    model: Qwen3_5ForCausalLM, ids: torch.Tensor, cache: DynamicCache, start: int
) -> np.ndarray:
    """[len(ids), V]: one cached step per given token, the first at position `start`."""
    steps = [_cached(model, ids[i : i + 1], cache, start + i)[0] for i in range(len(ids))]
    return torch.stack(steps).numpy()


def run(case: ow.Case) -> ow.Golden:
    model = build(case)
    ids = torch.from_numpy(ow.token_ids(case)).long()
    prompt, continuation = ids[: case.prompt_length], ids[case.prompt_length :]
    chunked = np.stack([prefill(model, prompt, chunks)[0] for chunks in case.chunkings])
    _, cache = prefill(model, prompt, [case.prompt_length])
    return ow.Golden(
        full_logits(model, ids), chunked, decode(model, continuation, cache, case.prompt_length)
    )


def describe(case: ow.Case, golden: ow.Golden) -> dict[str, float]:
    last = golden.full[case.prompt_length - 1]
    steps = golden.full[case.prompt_length :]
    scale = golden.logit_range
    return {
        "logit_range": round(scale, 4),
        "chunked_spread": float(np.abs(golden.chunked - last).max() / scale),
        "decode_spread": float(np.abs(golden.decode - steps).max() / scale),
    }


def versions() -> dict[str, str]:
    return {
        "command": "python tests/oracle/make_goldens.py",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "dtype": "float32",
        "attention": "eager",
    }


def main() -> None:
    torch.set_num_threads(1)
    chosen = [ow.CASES_BY_NAME[name] for name in sys.argv[1:]] or list(ow.CASES)
    path = ow.GOLDEN / "versions.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else {}
    for case in chosen:
        golden = run(case)
        np.savez_compressed(
            ow.GOLDEN / f"{case.name}.npz", fingerprint=ow.fingerprint(case), **vars(golden)
        )
        cases[case.name] = describe(case, golden)
        print(case.name, cases[case.name])
    ordered = {case.name: cases[case.name] for case in ow.CASES if case.name in cases}
    path.write_text(json.dumps(versions() | {"cases": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
