"""Causal language models behind one face: loss over a spliced prefix, and cached batched generation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.config import Config
from radweave.errors import InputError
from radweave.nn.lora import LoraSetting, NoLoraConfig


class DecodingConfig(Config):
    """How reports are decoded. Greedy unless beams or sampling are asked for; sampling is seeded."""

    num_beams: int = Field(default=1, ge=1)
    max_new_tokens: int = Field(default=100, ge=1)
    min_new_tokens: int = Field(default=0, ge=0)
    repetition_penalty: float = Field(default=1.0, gt=0)
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    do_sample: bool = False
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = 0


class CausalLanguageModel(nn.Module):
    """A transformers causal language model that reads a prefix of embeddings.

    The prefix is left-padded and the report right-padded, so that prompt and report meet in one column; position
    ids count present tokens only, which makes a row independent of its padding.

    ``token_dropout`` blanks that share of the report's input tokens while training, so that the next word must be read
    off the image rather than off the words before (Bowman et al., CoNLL 2016, Sec. 3.1).
    """

    def __init__(self, model: Any, *, bos_id: int | None, eos_id: int, pad_id: int, token_dropout: float = 0.0) -> None:
        super().__init__()
        self.model: Any = model
        self.bos_id = eos_id if bos_id is None else bos_id
        self.token_dropout = token_dropout
        self.eos_id = eos_id
        self.pad_id = pad_id

    @property
    def architecture(self) -> Any:
        """The model's transformers configuration."""
        return self.model.config

    @property
    def width(self) -> int:
        return int(self.model.get_input_embeddings().embedding_dim)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.get_input_embeddings().weight.dtype
        return dtype

    def embed(self, input_ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape width"]:
        out: Tensor = self.model.get_input_embeddings()(input_ids)
        return out

    def loss(
        self,
        prefix: Float[Tensor, "batch prefix width"],
        prefix_mask: Bool[Tensor, "batch prefix"],
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of the labels that are not -100.

        The last prefix position predicts the first report token, so ``labels`` are not shifted by the caller.
        """
        text_mask = labels != -100
        prefix = prefix.to(self.dtype)
        text = self.embed(input_ids)
        if self.training and self.token_dropout:
            kept = torch.rand(input_ids.shape, device=text.device) >= self.token_dropout
            text = text * kept[:, :, None]
        embeds = torch.cat([prefix, text], dim=1)
        mask = torch.cat([prefix_mask, text_mask], dim=1)
        length = input_ids.shape[1]
        logits = self.model(
            inputs_embeds=embeds,
            attention_mask=mask.long(),
            position_ids=position_ids(mask),
            logits_to_keep=length + 1,
            use_cache=False,
        ).logits[:, :-1]
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)

    def text_loss(self, input_ids: Int[Tensor, "batch text"], labels: Int[Tensor, "batch text"]) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of reports without any image, after the begin token.

        Trained on it, a small language model is a pretrained one: "frozen" then means something at tiny sizes.
        """
        begin = torch.full_like(input_ids[:, :1], self.bos_id)
        prefix = self.embed(begin)
        mask = torch.ones(begin.shape, dtype=torch.bool, device=begin.device)
        return self.loss(prefix, mask, input_ids, labels)

    @torch.no_grad()
    def generate(
        self,
        prefix: Float[Tensor, "batch prefix width"],
        prefix_mask: Bool[Tensor, "batch prefix"],
        decoding: DecodingConfig,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Decode with a key-value cache.

        Returns:
            Token ids per row, without end or padding, and the log-probability of each of those tokens.
        """
        options: dict[str, Any] = {}
        if decoding.do_sample:
            torch.manual_seed(decoding.seed)
            options = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
        if decoding.num_beams > 1:
            options["length_penalty"] = decoding.length_penalty
        out = self.model.generate(
            inputs_embeds=prefix.to(self.dtype),
            attention_mask=prefix_mask.long(),
            max_new_tokens=decoding.max_new_tokens,
            min_new_tokens=decoding.min_new_tokens or None,
            num_beams=decoding.num_beams,
            do_sample=decoding.do_sample,
            repetition_penalty=decoding.repetition_penalty,
            no_repeat_ngram_size=decoding.no_repeat_ngram_size,
            eos_token_id=self.eos_id,
            pad_token_id=self.pad_id,
            output_scores=True,
            return_dict_in_generate=True,
            use_cache=True,
            **options,
        )
        scores = self.model.compute_transition_scores(
            out.sequences, out.scores, getattr(out, "beam_indices", None), normalize_logits=decoding.num_beams == 1
        )
        return self._trim(out.sequences, scores)

    def _trim(self, sequences: Tensor, scores: Tensor) -> tuple[list[list[int]], list[list[float]]]:
        ids, log_probs = [], []
        for row, row_scores in zip(sequences.tolist(), scores.tolist(), strict=True):
            end = row.index(self.eos_id) if self.eos_id in row else len(row)
            ids.append(row[:end])
            log_probs.append(row_scores[:end])
        return ids, log_probs


def position_ids(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Count present tokens from 0; absent ones get 0."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


class LlamaConfig(Config):
    """A Llama-type decoder built from nothing; its vocabulary is the tokenizer's.

    Weights start at 1 / sqrt(hidden_size) and words at ``embedding_std``, near the scale of visual tokens. With Llama's
    own 0.02, which suits widths of thousands, a small decoder takes longer to look at the image; see the method page.
    """

    kind: Literal["llama"] = "llama"
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    num_key_value_heads: int | None = None
    intermediate_size: int | None = None
    max_positions: int = 2048
    dropout: float = 0.0
    embedding_std: float = Field(default=0.5, gt=0)
    token_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora: LoraSetting = NoLoraConfig()

    def build(
        self, *, vocab_size: int, bos_id: int | None, eos_id: int, pad_id: int, saved: Path | None = None
    ) -> CausalLanguageModel:
        """Build with random weights; vocabulary and special ids are the tokenizer's. ``saved`` is not needed."""
        from transformers import LlamaConfig as HFConfig
        from transformers import LlamaForCausalLM

        config = HFConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads or self.num_heads,
            intermediate_size=self.intermediate_size or 4 * self.hidden_size,
            max_position_embeddings=self.max_positions,
            attention_dropout=self.dropout,
            bos_token_id=bos_id,
            eos_token_id=eos_id,
            pad_token_id=pad_id,
            tie_word_embeddings=False,
            initializer_range=self.hidden_size**-0.5,
        )
        llama = LlamaForCausalLM(config)
        nn.init.normal_(llama.get_input_embeddings().weight, std=self.embedding_std)
        model = self.lora.apply(llama)
        return CausalLanguageModel(model, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id, token_dropout=self.token_dropout)


class PretrainedLanguageModelConfig(Config):
    """Any causal language model that transformers loads from a folder or hub name.

    ``quantization`` loads the weights in 8 or 4 bits (extra ``quantization``); such weights cannot train, adapters on
    them can. ``gradient_checkpointing`` trades time for memory in training.
    """

    kind: Literal["pretrained"] = "pretrained"
    path: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantization: Literal["none", "8bit", "4bit"] = "none"
    gradient_checkpointing: bool = False
    token_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora: LoraSetting = NoLoraConfig()

    def build(
        self, *, vocab_size: int, bos_id: int | None, eos_id: int, pad_id: int, saved: Path | None = None
    ) -> CausalLanguageModel:
        """Load the weights; with ``saved`` only the shape, from the ``config.json`` kept in a run folder.

        Raises:
            InputError: if there is no such checkpoint, its vocabulary is smaller than the tokenizer's, or the
                quantisation asked for cannot run here.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        dtype = getattr(torch, self.dtype)
        try:
            if saved is not None:
                model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(saved)), dtype=dtype)
            else:
                quantization = self._quantization_config()
                model = AutoModelForCausalLM.from_pretrained(self.path, dtype=dtype, quantization_config=quantization)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"cannot load a language model: {reason}", file=self.path) from None
        rows = model.get_input_embeddings().num_embeddings
        if rows < vocab_size:
            raise InputError(
                "the tokenizer does not belong to this language model",
                file=self.path,
                field="vocab_size",
                got=f"{vocab_size} tokens",
                expected=f"at most {rows}",
            )
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        adapted = self.lora.apply(model)
        return CausalLanguageModel(
            adapted, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id, token_dropout=self.token_dropout
        )

    def _quantization_config(self) -> Any:
        if self.quantization == "none":
            return None
        from importlib.util import find_spec

        if find_spec("bitsandbytes") is None or not torch.cuda.is_available():
            raise InputError(
                "8- and 4-bit loading needs a CUDA device and the extra 'quantization' (bitsandbytes)",
                field="language_model.quantization",
                got=self.quantization,
                expected="none",
            )
        from transformers import BitsAndBytesConfig

        if self.quantization == "8bit":
            return BitsAndBytesConfig(load_in_8bit=True)
        return BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, self.dtype)
        )


LanguageModelConfig = Annotated[LlamaConfig | PretrainedLanguageModelConfig, Field(discriminator="kind")]
