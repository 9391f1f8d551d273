"""Configuration of the dense Qwen3.5 / 3.6 / 3.8 text model, read from a Hugging Face config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from onecat_jax.errors import ModelConfigError
from onecat_jax.sharding import local_counts
from onecat_jax.state import CacheShape

LayerKind = Literal["linear_attention", "full_attention"]
ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
MODEL_TYPES = ("qwen3_5", "qwen3_5_text")
_FIELD_OF = {  # logical axis -> what counts it
    "vocab": "vocab_size",
    "mlp": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
}
_SILU = ("silu", "swish")
_MAX_LAYERS = 4096  # lists of one entry per layer are made before a tensor is looked for


@dataclass(frozen=True)
class ModelConfig:
    """Geometry and constants of one checkpoint. Field names follow config.json where it has them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[LayerKind, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    mtp_num_hidden_layers: int
    eos_token_id: tuple[int, ...]

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def num_full_layers(self) -> int:
        return self.layer_types.count("full_attention")

    @property
    def num_linear_layers(self) -> int:
        return self.layer_types.count("linear_attention")

    @property
    def units(self) -> dict[str, int]:
        """What each logical axis (params.py) is counted in, for the axes that the model's layers have."""
        units = {"vocab": self.vocab_size, "mlp": self.intermediate_size}
        if self.num_full_layers:
            units |= {"heads": self.num_attention_heads, "kv_heads": self.num_key_value_heads}
        if self.num_linear_layers:
            units |= {
                "key_heads": self.linear_num_key_heads,
                "value_heads": self.linear_num_value_heads,
            }
        return units

    def local(self, ranks: int) -> "ModelConfig":
        """This model's share on one of several tensor-parallel ranks.

        Raises:
          EngineError: heads, features or ids don't divide.
        """
        counts = local_counts(self.units, ranks)
        fields: dict[str, Any] = {_FIELD_OF[axis]: count for axis, count in counts.items()}
        return replace(self, **fields)

    @property
    def key_dim(self) -> int:
        """GDN query (and key) features: Hk * Dk."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """GDN value features: Hv * Dv."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the GDN convolution, C: query, key and value side by side."""
        return 2 * self.key_dim + self.value_dim

    def cache_shape(
        self, *, pages: int, page_size: int, slots: int, mtp: bool = False
    ) -> CacheShape:
        """Sizes of a state for this model (of one rank if this is `local`), page 0 and slot 0 included.

        With `mtp`, layers of the MTP head follow those of the model in the paged cache.
        """
        return CacheShape(
            attention_layers=self.num_full_layers + mtp * self.mtp_num_hidden_layers,
            pages=pages,
            page_size=page_size,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            gdn_layers=self.num_linear_layers,
            slots=slots,
            value_heads=self.linear_num_value_heads,
            key_dim=self.linear_key_head_dim,
            value_dim=self.linear_value_head_dim,
            conv_channels=self.conv_dim,
            conv_width=self.linear_conv_kernel_dim,
            vocab=self.vocab_size,
        )

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "ModelConfig":
        """Reads a config.json, nested (`text_config`) or flat.

        Raises:
          ModelConfigError: a field is missing, of the wrong type, or asks for something that isn't implemented.
        """
        return _Reader(config).read()


class _Reader:
    """Reads fields of the text config, naming the field in every refusal."""

    def __init__(self, config: Mapping[str, Any]):
        nested = config.get("text_config")
        self.outer = config
        self.text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config

    def read(self) -> ModelConfig:
        self._check_fixed_choices()
        layer_types = self._layer_types()
        head_dim = self._int("head_dim")
        config = ModelConfig(
            vocab_size=self._int("vocab_size"),
            hidden_size=self._int("hidden_size"),
            intermediate_size=self._int("intermediate_size"),
            layer_types=layer_types,
            num_attention_heads=self._int("num_attention_heads"),
            num_key_value_heads=self._int("num_key_value_heads"),
            head_dim=head_dim,
            rotary_dim=self._rotary_dim(head_dim),
            rope_theta=self._rope_theta(),
            linear_num_key_heads=self._int("linear_num_key_heads"),
            linear_num_value_heads=self._int("linear_num_value_heads"),
            linear_key_head_dim=self._int("linear_key_head_dim"),
            linear_value_head_dim=self._int("linear_value_head_dim"),
            linear_conv_kernel_dim=self._int("linear_conv_kernel_dim"),
            rms_norm_eps=self._float("rms_norm_eps", default=1e-6),
            tie_word_embeddings=self._tied(),
            max_position_embeddings=self._int("max_position_embeddings"),
            mtp_num_hidden_layers=self._int("mtp_num_hidden_layers", default=0, low=0),
            eos_token_id=_id_tuple(self.text.get("eos_token_id")),
        )
        _check_ratios(config)
        return config

    def _check_fixed_choices(self) -> None:
        self._require("hidden_act", _SILU, default="silu")
        self._require("output_gate_type", _SILU, default="silu")
        self._require("attn_output_gate", (True,), default=True)
        self._require("attention_bias", (False,), default=False)
        rope = self._rope()
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ModelConfigError(
                f"config.json: rope_type is {kind!r}; only 'default' is implemented for this family"
            )

    def _layer_types(self) -> tuple[LayerKind, ...]:
        count = self._int("num_hidden_layers", high=_MAX_LAYERS)
        listed = self.text.get("layer_types")
        if listed is not None and not isinstance(listed, list | tuple):
            raise ModelConfigError(f"config.json: layer_types is {listed!r}; a list is needed")
        if listed is None:
            every = self._int("full_attention_interval", default=4)
            listed = [
                "full_attention" if (i + 1) % every == 0 else "linear_attention"
                for i in range(count)
            ]
        unknown = sorted({str(k) for k in listed} - {"linear_attention", "full_attention"})
        if unknown:
            raise ModelConfigError(
                f"config.json: layer_types holds {unknown}; this family has 'linear_attention' and "
                "'full_attention' only"
            )
        if len(listed) != count:
            raise ModelConfigError(
                f"config.json: layer_types lists {len(listed)} layers, num_hidden_layers is {count}; "
                "they must be equal"
            )
        return tuple(listed)

    def _rope(self) -> Mapping[str, Any]:
        rope = self.text.get("rope_parameters") or self.text.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise ModelConfigError(f"config.json: rope_parameters is {rope!r}; an object is needed")
        return rope

    def _rope_theta(self) -> float:
        value = self._rope().get("rope_theta", self.text.get("rope_theta", 10000.0))
        return _number("rope_theta", value)

    def _rotary_dim(self, head_dim: int) -> int:
        value = self._rope().get(
            "partial_rotary_factor", self.text.get("partial_rotary_factor", 0.25)
        )
        rotary = int(head_dim * _number("partial_rotary_factor", value))
        if rotary <= 0 or rotary % 2 or rotary > head_dim:
            raise ModelConfigError(
                f"config.json: partial_rotary_factor {value} of head_dim {head_dim} gives {rotary} rotary "
                "dims; an even number between 2 and head_dim is needed"
            )
        return rotary

    def _tied(self) -> bool:
        value = self.text.get("tie_word_embeddings", self.outer.get("tie_word_embeddings", False))
        if value is not None and not isinstance(value, bool):
            raise ModelConfigError(
                f"config.json: tie_word_embeddings is {value!r}; true or false is needed"
            )
        return bool(value)

    def _require(self, name: str, allowed: tuple[Any, ...], default: Any) -> None:
        value = self.text.get(name, default)
        if value not in allowed:
            raise ModelConfigError(
                f"config.json: {name} is {value!r}; implemented: {', '.join(map(repr, allowed))}"
            )

    def _int(
        self, name: str, default: int | None = None, *, low: int = 1, high: int = 2**31 - 1
    ) -> int:
        value = self.text.get(name, default)
        if type(value) is not int or not low <= value <= high:
            found = "missing" if value is None else repr(value)[:60]
            raise ModelConfigError(
                f"config.json: {name} is {found}; a whole number from {low} to {high} is needed"
            )
        return value

    def _float(self, name: str, default: float) -> float:
        return _number(name, self.text.get(name, default))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise ModelConfigError(
            f"config.json: {name} is {repr(value)[:60]}; a positive number below 1e30 is needed"
        )
    return float(value)


def _id_tuple(value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list | tuple) else () if value is None else (value,)
    if any(type(index) is not int for index in ids):
        raise ModelConfigError(
            f"config.json: eos_token_id is {value!r}; a token id or a list of token ids is needed"
        )
    return tuple(ids)


def _check_ratios(config: ModelConfig) -> None:
    pairs = (
        ("num_attention_heads", "num_key_value_heads"),
        ("linear_num_value_heads", "linear_num_key_heads"),
    )
    for many, few in pairs:
        a, b = getattr(config, many), getattr(config, few)
        if b == 0 or a % b:
            raise ModelConfigError(
                f"config.json: {many} {a} is not a multiple of {few} {b}; each {few[:-1]} serves a whole group"
            )
