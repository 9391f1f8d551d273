"""The embedded tiny model in PyTorch as speculative decoding sees it: logits, residuals after chosen layers, the MTP head."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from dflash_equations import Draft
from safetensors.torch import load_file
from torch import Tensor
from torch_checkpoint import expand_nvfp4, load_model
from transformers import Qwen3_5ForCausalLM
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

TINY = Path(__file__).parents[2] / "onecat_jax" / "assets" / "tiny"


@dataclass(frozen=True)
class Seen:
    """What one forward over all tokens gives."""

    taps: Tensor  # [A, T, E] residual after the tapped layers, not normalised
    hidden: Tensor  # [T, E] after the last norm
    logits: Tensor  # [T, V]


class Target:
    """The target in float32, no cache. `layers` are the tapped ones, counted from 0."""

    def __init__(self, folder: Path, layers: list[int]):
        self.model: Qwen3_5ForCausalLM = load_model(folder)
        self.layers = layers

    @property
    def table(self) -> Tensor:
        return self.model.model.embed_tokens.weight

    @property
    def head(self) -> Tensor:
        return self.model.lm_head.weight

    @torch.no_grad()
    def see(self, tokens: list[int]) -> Seen:
        kept: dict[int, Tensor] = {}

        def keep(index: int):
            return lambda module, given, out: kept.update({index: out[0]})

        hooks = [self.model.model.layers[i].register_forward_hook(keep(i)) for i in self.layers]
        ids = torch.tensor([tokens])
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        for hook in hooks:
            hook.remove()
        taps = torch.stack([kept[i] for i in self.layers])
        return Seen(taps, hidden, hidden @ self.head.T)


class Mtp:
    """The multi-token head: one decoder layer over pairs of a hidden row and the token that follows it."""

    def __init__(self, target: Target, folder: Path):
        stored = {}
        for file in sorted(folder.glob("*.safetensors")):
            stored |= {n: w for n, w in load_file(file).items() if n.startswith("mtp.")}
        expanded = {
            name.removeprefix("mtp."): _plain(stored, name)
            for name in stored
            if not name.endswith(("_scale", "_scale_2"))
        }
        config = target.model.config
        self.target = target
        kind = list(config.layer_types).index("full_attention")
        self.layer = Qwen3_5DecoderLayer(config, kind).float().eval()
        self.layer.load_state_dict(_under(expanded, "layers.0."))
        self.norms = {}
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            self.norms[name] = Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            self.norms[name].load_state_dict(_under(expanded, f"{name}."))
        self.fc = expanded["fc.weight"]

    @torch.no_grad()
    def rows(self, following: list[int], hidden: Tensor) -> Tensor:
        """[T, E] after the head's norm; row P pairs hidden row P with the token at P + 1, at position P."""
        embedded = self.target.table[torch.tensor(following)]
        pair = (
            self.norms["pre_fc_norm_embedding"](embedded),
            self.norms["pre_fc_norm_hidden"](hidden),
        )
        x = (torch.cat(pair, -1) @ self.fc.T)[None]
        count = x.shape[1]
        turn = self.target.model.model.rotary_emb(x, torch.arange(count).expand(3, 1, -1))
        later = torch.ones(count, count).triu(1).bool()
        mask = torch.zeros(count, count).masked_fill(later, -torch.inf)[None, None]
        x = self.layer(x, position_embeddings=turn, attention_mask=mask)
        return self.norms["norm"](x)[0]


def _plain(stored: dict[str, Tensor], name: str) -> Tensor:
    tensor = stored[name]
    if tensor.dtype != torch.uint8:
        return tensor.float()
    return expand_nvfp4(tensor, stored[f"{name}_scale"], stored[f"{name}_scale_2"])


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): w for n, w in tensors.items() if n.startswith(prefix)}


def load_draft(folder: Path = TINY / "dflash2") -> Draft:
    """The embedded draft in float32."""
    config = json.loads((folder / "config.json").read_text())
    stored = load_file(folder / "model.safetensors")
    return Draft(config, {name: tensor.float() for name, tensor in stored.items()})
