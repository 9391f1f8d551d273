"""Fields of a draft's config.json, each looked for in dflash_config and at top level, and named in every refusal."""

from collections.abc import Mapping
from typing import Any

from onecat_jax.errors import ModelConfigError

ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
_SLIDING, _FULL = "sliding_attention", "full_attention"
_MAX_LAYERS = 256
_KNOWN = frozenset(  # of dflash_config; any other could change the function
    {
        "attention_bias",
        "attention_sink_bias",
        "attention_value_scale",
        "block_size",
        "causal",
        "conv_group_size",
        "conv_kernel_size",
        "draft_vocab_size",
        "final_logit_softcapping",
        "input_embedding_scale",
        "is_neox_style",
        "mask_token_id",
        "num_target_layers",
        "output_multiplier",
        "selector_rank",
        "selector_top_k",
        "swa_window_size",
        "target_layer_ids",
        "use_aux_hidden_state",
        "use_swa",
    }
)
_FIXED: tuple[
    tuple[str, Any, str], ...
] = (  # name, the only value implemented, what others would mean
    ("attention_sink_bias", False, "attention sinks"),
    ("add_swa_attention_sink_bias", False, "attention sinks"),
    ("add_full_attention_sink_bias", False, "attention sinks"),
    ("use_aux_hidden_state", True, "a draft without taps of the target"),
    ("mlp_bias", False, "biases of the feed-forward part"),
    ("logit_scale", 1, "scaled logits; output_multiplier is the field for that"),
    ("rope_scaling", None, "scaled rotary embeddings"),
)


def default_taps(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """Layers of the target that a v1 draft reads if its config.json lists none: evenly spread from 1 to T - 3."""
    if draft_layers == 1:
        return (target_layers // 2,)
    step = (target_layers - 4) / (draft_layers - 1)
    return tuple(round(1 + i * step) for i in range(draft_layers))


class Reader:
    """Reads one config.json."""

    def __init__(self, config: Mapping[str, Any]):
        self.outer = config
        self.inner = self._object("dflash_config")
        self.rope = self._object("rope_parameters")
        unknown = sorted(set(map(str, self.inner)) - _KNOWN)
        if unknown:
            raise ModelConfigError(
                f"the draft's dflash_config has {', '.join(unknown)}, which isn't implemented and could change what "
                "the draft computes"
            )

    def _object(self, name: str) -> Mapping[str, Any]:
        """A field of config.json that holds fields; empty if it is missing."""
        value = self.outer.get(name)
        if not isinstance(value, Mapping | None):
            raise _refused(name, value, "an object is needed")
        return value or {}

    def _names(self, name: str) -> list[str] | None:
        """A list of texts at top level, None if the field is missing."""
        value = self.outer.get(name)
        if value is not None and not (
            isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
        ):
            raise _refused(name, value, "a list of names is needed")
        return None if value is None else list(value)

    def get(self, name: str) -> Any:
        """The value, or None; two different ones are refused."""
        inner, outer = self.inner.get(name), self.outer.get(name)
        if inner is not None and outer is not None and inner != outer:
            raise ModelConfigError(
                f"the draft's config.json has {name} {outer!r} at top level and {inner!r} in dflash_config; "
                "they must be equal"
            )
        return outer if inner is None else inner

    def whole(
        self, name: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1
    ) -> int:
        """A whole number."""
        value = self.get(name)
        value = default if value is None else value
        if type(value) is not int or not low <= value <= high:
            raise _refused(name, value, f"a whole number from {low} to {high} is needed")
        return value

    def optional_whole(self, name: str, *, low: int = 1) -> int | None:
        """The same, None if the field is missing."""
        return None if self.get(name) is None else self.whole(name, low=low)

    def number(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.get(name)
        return _positive(name, default if value is None else value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise _refused(name, value, "true or false is needed")
        return default if value is None else value

    def softcap(self) -> float:
        """The bound of the logits, 0 for none."""
        value = self.get("final_logit_softcapping")
        off = value is None or (type(value) in (int, float) and value == 0)
        return 0.0 if off else _positive("final_logit_softcapping", value)

    def check_fixed_choices(self) -> None:
        """Refuses what isn't implemented, by name."""
        listed = self._names("architectures") or []
        unknown = [name for name in listed if name not in ARCHITECTURES]
        if unknown:
            raise _refused("architectures", listed, f"implemented: {', '.join(ARCHITECTURES)}")
        for name, only, meaning in _FIXED:
            value = self.get(name)
            if value is not None and value != only:
                raise _refused(name, value, f"{meaning}: not implemented for drafts")
        if (act := self.outer.get("hidden_act", "silu")) not in ("silu", "swish"):
            raise _refused("hidden_act", act, "implemented: 'silu'")
        kind = self.rope.get("rope_type", self.rope.get("type", "default"))
        if kind != "default":
            raise _refused("rope_type", kind, "implemented for drafts: 'default'")
        width = self.outer.get("target_hidden_size")
        if width is not None and width != self.outer.get("hidden_size"):
            raise _refused(
                "target_hidden_size",
                width,
                f"hidden_size is {self.outer.get('hidden_size')}, both must be equal",
            )

    def attention(self) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
        """Window and causality of every layer.

        layer_types decide which layers slide; use_swa makes all of them slide where none does. Blocks are causal as is_causal
        says, else dflash_config.causal, else in the layers that layer_types lists as sliding.
        """
        count = self.whole("num_hidden_layers", high=_MAX_LAYERS)
        listed = self._layer_types(count)
        slides = [kind == _SLIDING for kind in listed]
        forced = self.flag("use_swa", False) and not any(slides)
        window = self._window() if forced or any(slides) else None
        windows = tuple(window if forced or sliding else None for sliding in slides)
        both = self.outer.get("is_causal"), self.inner.get("causal")
        for said in both:
            if not isinstance(said, bool | None):
                raise _refused("is_causal or dflash_config.causal", said, "true or false is needed")
        said = both[1] if both[0] is None else both[0]
        return windows, tuple(slides) if said is None else (said,) * count

    def _layer_types(self, count: int) -> list[str]:
        listed = self._names("layer_types")
        if listed is None:
            return [_FULL] * count
        if not set(listed) <= {_SLIDING, _FULL}:
            raise _refused("layer_types", listed, f"a list of {_SLIDING!r} and {_FULL!r} is needed")
        if len(listed) != count:
            raise _refused(
                "layer_types",
                f"{len(listed)} layers",
                f"num_hidden_layers is {count}, they must be equal",
            )
        return listed

    def _window(self) -> int:
        name = "swa_window_size" if self.get("swa_window_size") is not None else "sliding_window"
        return self.whole(name)

    def target_layer_ids(self, draft_layers: int) -> tuple[int, ...]:
        """The layers listed, or those of the default rule."""
        listed = self.get("target_layer_ids")
        if listed is None:
            target_layers = self.whole("num_target_layers")  # what the rule starts from
            return default_taps(target_layers, draft_layers)
        if (
            not isinstance(listed, list | tuple)
            or not listed
            or any(type(at) is not int or at < 0 for at in listed)
            or len(set(listed)) != len(listed)
        ):
            raise _refused(
                "target_layer_ids", listed, "a list of different layer numbers is needed"
            )
        return tuple(listed)

    def head_dim(self) -> int:
        """As listed, or the hidden features per head."""
        if self.get("head_dim") is not None:
            return self.whole("head_dim")
        return self.whole("hidden_size") // self.whole("num_attention_heads")

    def rope_theta(self) -> float:
        """The base of the rotary angles."""
        value = self.rope.get("rope_theta", self.outer.get("rope_theta", 1e6))
        return _positive("rope_theta", value)

    def rotary_dim(self, head_dim: int) -> int:
        """Dims of a head that turn; all by default."""
        factor = self.rope.get(
            "partial_rotary_factor", self.outer.get("partial_rotary_factor", 1.0)
        )
        rotary = int(head_dim * _positive("partial_rotary_factor", factor))
        if rotary <= 0 or rotary % 2 or rotary > head_dim:
            raise _refused(
                "partial_rotary_factor",
                factor,
                f"of head_dim {head_dim} it gives {rotary} rotary dims, an even number from 2 to {head_dim} is needed",
            )
        return rotary


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise _refused(name, value, "a positive number below 1e30 is needed")
    return float(value)


def _refused(name: str, value: Any, why: str) -> ModelConfigError:
    found = "missing" if value is None else repr(value)[:80]
    return ModelConfigError(f"the draft's config.json: {name} is {found}; {why}")
