"""Configuration of a DFlash or DFlash2 draft model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onecat_jax.errors import ModelConfigError
from onecat_jax.models.dflash.reader import Reader
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.sharding import local_counts
from onecat_jax.state import DraftShape, DraftWindow

_FIELD_OF = {  # logical axis -> what counts it on one rank
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "mlp": "intermediate_size",
}


@dataclass(frozen=True)
class DFlashConfig:
    """Geometry and constants of one draft. Field names follow config.json where it has them."""

    vocab_size: int
    draft_vocab_size: (
        int  # ids that the draft proposes; fewer than vocab_size with a head of its own
    )
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    is_neox_style: bool  # dim j turns with j + rotary_dim / 2; otherwise 2j with 2j + 1
    rms_norm_eps: float
    attention_bias: bool
    windows: tuple[int | None, ...]  # per layer: positions a row may look back, its own included
    causal: tuple[bool, ...]  # per layer: whether rows of a block see only earlier rows of it
    block_size: int  # rows of a block: the anchor and block_size - 1 predictions
    mask_token_id: int | None
    target_layer_ids: tuple[int, ...]  # layers of the target whose output is read
    num_target_layers: int | None
    conv_kernel_size: int  # taps; 0 in DFlash v1
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    attention_value_scale: float
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float  # 0 = off

    @property
    def num_hidden_layers(self) -> int:
        return len(self.windows)

    @property
    def selects(self) -> bool:
        """Whether this is DFlash2, with convolutions and a candidate selector."""
        return self.selector_top_k > 0

    @property
    def candidates(self) -> int:
        """Ids considered per predicted row: the selector's, or the likeliest one."""
        return max(self.selector_top_k, 1)

    @property
    def own_vocabulary(self) -> bool:
        """Whether the draft numbers its tokens in its own way (d2t), which needs a head of its own."""
        return self.draft_vocab_size != self.vocab_size

    @property
    def conv_groups(self) -> int:
        return self.hidden_size // self.conv_group_size

    @property
    def window(self) -> int | None:
        """Positions that the widest layer looks back; None for all."""
        return None if None in self.windows else max(w for w in self.windows if w is not None)

    @property
    def units(self) -> dict[str, int]:
        """What each logical axis (params.py) is counted in."""
        return {
            "vocab": self.vocab_size,
            "heads": self.num_attention_heads,
            "kv_heads": self.num_key_value_heads,
            "mlp": self.intermediate_size,
            "context": self.hidden_size,
        }

    def local(self, ranks: int) -> "DFlashConfig":
        """This draft's heads and features on one of several tensor-parallel ranks.

        Raises:
          EngineError: heads, features or ids don't divide.
        """
        counts = local_counts(self.units, ranks)
        fields: dict[str, Any] = {name: counts[axis] for axis, name in _FIELD_OF.items()}
        return replace(self, **fields)

    def draft_shape(self, *, page_size: int, max_len: int, kv_dtype: str) -> DraftShape:
        """Sizes of a state for this draft (of one rank if this is `local`).

        Args:
          page_size: tokens per page.
          max_len: positions of the longest sequence.
          kv_dtype: storage of keys and values.
        """
        return DraftShape(
            layers=self.num_hidden_layers,
            ring=DraftWindow.ring_pages(self.window, max_len, self.block_size, page_size),
            page_size=page_size,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            kv_dtype=kv_dtype,
        )

    def check_target(self, target: ModelConfig) -> None:
        """Refuses a target that this draft wasn't made for.

        Raises:
          ModelConfigError: the two contradict each other, or a block is too short to draft; both numbers are named.
        """
        _equal("hidden_size", self.hidden_size, target.hidden_size)
        _equal("vocab_size", self.vocab_size, target.vocab_size)
        if self.num_target_layers is not None:
            _equal("num_target_layers", self.num_target_layers, target.num_hidden_layers)
        beyond = [at for at in self.target_layer_ids if not 0 <= at < target.num_hidden_layers]
        if beyond:
            raise ModelConfigError(
                f"the draft reads target layers {beyond}, the target has layers 0 to {target.num_hidden_layers - 1}; "
                "use the draft that was made for this target"
            )
        if self.mask_token_id is None:
            raise ModelConfigError(
                "the draft's config.json has no mask_token_id, neither in dflash_config nor at top level; the id "
                "that stands for tokens to be predicted is needed"
            )
        if not 0 <= self.mask_token_id < target.vocab_size:
            raise ModelConfigError(
                f"the draft's mask_token_id is {self.mask_token_id}, the target has ids 0 to {target.vocab_size - 1}; "
                "use the draft that was made for this target"
            )
        if self.block_size < 2:
            raise ModelConfigError(
                f"the draft's block_size is {self.block_size}; at least 2 is needed, the last token and one draft"
            )

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "DFlashConfig":
        """Reads a config.json.

        Raises:
          ModelConfigError: a field is missing, of the wrong type, contradicts another, or asks for something that isn't
            implemented; fields of dflash_config that aren't known are refused, since they could change the function.
        """
        read = Reader(config)
        read.check_fixed_choices()
        windows, causal = read.attention()
        head_dim = read.head_dim()
        vocab_size = read.whole("vocab_size")
        draft = DFlashConfig(
            vocab_size=vocab_size,
            draft_vocab_size=read.whole("draft_vocab_size", vocab_size, high=vocab_size),
            hidden_size=read.whole("hidden_size"),
            intermediate_size=read.whole("intermediate_size"),
            num_attention_heads=read.whole("num_attention_heads"),
            num_key_value_heads=read.whole("num_key_value_heads"),
            head_dim=head_dim,
            rotary_dim=read.rotary_dim(head_dim),
            rope_theta=read.rope_theta(),
            is_neox_style=read.flag("is_neox_style", True),
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            attention_bias=read.flag("attention_bias", False),
            windows=windows,
            causal=causal,
            block_size=read.whole("block_size"),
            mask_token_id=read.optional_whole("mask_token_id", low=0),
            target_layer_ids=read.target_layer_ids(len(windows)),
            num_target_layers=read.optional_whole("num_target_layers"),
            conv_kernel_size=read.whole("conv_kernel_size", 0, low=0),
            conv_group_size=read.whole("conv_group_size", 0, low=0),
            selector_rank=read.whole("selector_rank", 0, low=0),
            selector_top_k=read.whole("selector_top_k", 0, low=0),
            attention_value_scale=read.number("attention_value_scale", 1.0),
            input_embedding_scale=read.number("input_embedding_scale", 1.0),
            output_multiplier=read.number("output_multiplier", 1.0),
            final_logit_softcapping=read.softcap(),
        )
        _check_geometry(draft)
        return draft


def _equal(name: str, draft: int, target: int) -> None:
    if draft != target:
        of = "the target" if name == "num_target_layers" else "the target's"
        what = f"{of} has {target} layers" if name == "num_target_layers" else f"{of} is {target}"
        raise ModelConfigError(
            f"the draft's {name} is {draft}, {what}; use the draft that was made for this target"
        )


def _check_geometry(c: DFlashConfig) -> None:
    if c.num_attention_heads % c.num_key_value_heads:
        raise ModelConfigError(
            f"the draft's num_attention_heads {c.num_attention_heads} is not a multiple of num_key_value_heads "
            f"{c.num_key_value_heads}; each key/value head serves a whole group"
        )
    sizes = {
        name: getattr(c, name)
        for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    }
    if 0 < sum(size > 0 for size in sizes.values()) < len(sizes):
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ModelConfigError(
            f"the draft's dflash_config has {listed}; DFlash2 needs all four above 0, DFlash v1 has none of them"
        )
    if c.selects and (c.hidden_size % c.conv_group_size or c.conv_kernel_size > c.block_size):
        raise ModelConfigError(
            f"the draft's conv_group_size is {c.conv_group_size} and its conv_kernel_size {c.conv_kernel_size}; the first "
            f"must divide hidden_size {c.hidden_size}, the second may be up to block_size {c.block_size}"
        )
    if c.selector_top_k > c.draft_vocab_size:
        raise ModelConfigError(
            f"the draft's selector_top_k is {c.selector_top_k}, more than its {c.draft_vocab_size} ids"
        )
