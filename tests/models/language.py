# SPDX-License-Identifier: Apache-2.0
"""Models of transformers and peft, small and with random weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .cases import Job, batch, case, classes, supervised, tokens

__all__: list[str] = []

VOCABULARY, LENGTH, COUNT = 512, 96, 8


def _labelled(model: nn.Module, **inputs: Any) -> Job:
    """A model that computes its loss itself, as those of transformers do given labels. An input is
    a function of the step's number."""

    def loss_of(model: nn.Module, number: int) -> Tensor:
        loss: Tensor = model(**{name: made(number) for name, made in inputs.items()}).loss
        return loss

    return supervised(model, loss_of)


def _causal(model: nn.Module) -> Job:
    def ids(number: int) -> Tensor:
        return tokens(number, VOCABULARY, COUNT, LENGTH)

    return _labelled(model, input_ids=ids, labels=ids)


_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}

# model -> (configuration, its fields)
_CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": (
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 128},
    ),
    "LlamaForCausalLM": ("LlamaConfig", _SMALL | {"num_key_value_heads": 2}),
    "MistralForCausalLM": ("MistralConfig", _SMALL | {"num_key_value_heads": 2}),
    "Qwen2ForCausalLM": ("Qwen2Config", _SMALL | {"num_key_value_heads": 2}),
    "GemmaForCausalLM": ("GemmaConfig", _SMALL | {"num_key_value_heads": 1, "head_dim": 32}),
    "OPTForCausalLM": (
        "OPTConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "ffn_dim": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "word_embed_proj_dim": 128,
        },
    ),
    "BloomForCausalLM": (
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 128, "n_layer": 4, "n_head": 4},
    ),
    "MixtralForCausalLM": (
        "MixtralConfig",
        _SMALL | {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "MambaForCausalLM": (
        "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    ),
}


def _register_causal(name: str, config: str, fields: dict[str, Any]) -> None:
    @case(f"transformers/{name.removesuffix('ForCausalLM').removesuffix('LMHeadModel').lower()}")
    def build() -> Job:
        import transformers

        return _causal(getattr(transformers, name)(getattr(transformers, config)(**fields)))


for _name, (_config, _fields) in _CAUSAL.items():
    _register_causal(_name, _config, _fields)


@case("transformers/bert-masked")
def bert() -> Job:
    from transformers import BertConfig, BertForMaskedLM

    return _causal(BertForMaskedLM(BertConfig(**_SMALL)))


@case("transformers/distilbert-classifier")
def distilbert() -> Job:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=VOCABULARY, dim=128, hidden_dim=256, n_layers=4, n_heads=4, num_labels=4
    )
    return _labelled(
        DistilBertForSequenceClassification(config),
        input_ids=lambda n: tokens(n, VOCABULARY, COUNT, LENGTH),
        labels=lambda n: classes(n, 4, COUNT),
    )


@case("transformers/t5")
def t5() -> Job:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=128,
        d_ff=256,
        d_kv=32,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return _labelled(
        T5ForConditionalGeneration(config),
        input_ids=lambda n: tokens(n, VOCABULARY, COUNT, LENGTH),
        labels=lambda n: tokens(n + 1, VOCABULARY, COUNT, 48),
    )


@case("transformers/bart")
def bart() -> Job:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_position_embeddings=128,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    )
    return _labelled(
        BartForConditionalGeneration(config),
        input_ids=lambda n: tokens(n, VOCABULARY, COUNT, LENGTH),
        labels=lambda n: tokens(n + 1, VOCABULARY, COUNT, 48),
    )


@case("transformers/vit-classifier")
def vit() -> Job:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=64,
        patch_size=8,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_labels=10,
    )
    return _labelled(
        ViTForImageClassification(config),
        pixel_values=lambda n: batch(n, COUNT, 3, 64, 64),
        labels=lambda n: classes(n, 10, COUNT),
    )


@case("transformers/whisper")
def whisper() -> Job:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=20,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=64,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return _labelled(
        WhisperForConditionalGeneration(config),
        input_features=lambda n: batch(n, COUNT, 20, 128),
        labels=lambda n: tokens(n, VOCABULARY, COUNT, 32),
    )


@case("transformers/gradient-checkpointing")
def own_checkpointing() -> Job:
    """A model that checkpoints its own layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**(_SMALL | {"num_key_value_heads": 2})))
    model.gradient_checkpointing_enable()
    return _causal(model)


@case("peft/lora")
def lora() -> Job:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**(_SMALL | {"num_key_value_heads": 2})))
    wrapped = get_peft_model(
        model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    return _causal(wrapped)
