"""Continuous batching: who is done leaves, who waits enters, and nobody's report hangs on who sits beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from pydantic import ValidationError
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import TracingContext

from radweave.core.errors import InputError, UnusableModelError
from radweave.nn import decoding as slots
from radweave.nn.decoding import DecodingConfig, KVCache, Prefixes
from radweave.nn.encoder_decoder import BertDecoderConfig
from radweave.nn.language_model import CausalLanguageModel, LlamaConfig

LENGTHS = (9, 2, 5, 1, 12, 3, 7)
# Of few words the end is soon one: reports here end anywhere between the first token and the last that may be.
WORDS, MOST = 8, 14
WAYS = {
    "greedy": DecodingConfig(max_new_tokens=MOST),
    "drawn": DecodingConfig(max_new_tokens=MOST, do_sample=True, temperature=1.4, top_p=0.9, seed=3),
    "steered": DecodingConfig(max_new_tokens=MOST, min_new_tokens=3, repetition_penalty=1.3, no_repeat_ngram_size=3),
    "beams": DecodingConfig(max_new_tokens=MOST, num_beams=3, length_penalty=0.5),
    "steered beams": DecodingConfig(
        max_new_tokens=MOST, num_beams=2, min_new_tokens=3, repetition_penalty=2.0, length_penalty=-1.0
    ),
}


@pytest.fixture(scope="module")
def writer() -> CausalLanguageModel:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, num_layers=2, num_heads=4, num_key_value_heads=2, embedding_std=2.0)
    return config.build(vocab_size=WORDS, bos_id=1, eos_id=2, pad_id=0).eval()


def prompts(rows: Sequence[int], *, memory: bool = False) -> Prefixes:
    """The studies of these numbers as one batch, the shorter ones padded on the left."""
    size = max(LENGTHS[row] for row in rows)
    embeds, mask = torch.zeros(len(rows), size, 32), torch.zeros(len(rows), size, dtype=torch.bool)
    for at, row in enumerate(rows):
        start = size - LENGTHS[row]
        embeds[at, start:] = torch.randn(LENGTHS[row], 32, generator=torch.Generator().manual_seed(row))
        mask[at, start:] = True
    return Prefixes(embeds, mask, embeds.flip(2), mask) if memory else Prefixes(embeds, mask)


def written(
    model: CausalLanguageModel, decoding: DecodingConfig, *batches: Sequence[int]
) -> list[tuple[object, object]]:
    result = list(model.write(iter([prompts(rows) for rows in batches]), decoding))
    assert [len(ids) for ids, _ in result] == [len(rows) for rows in batches], "batch by batch, in order"
    return [pair for ids, scores in result for pair in zip(ids, scores, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_a_report_has_the_same_bits_alone_and_in_any_batch_and_the_words_of_a_growing_cache(
    writer: CausalLanguageModel, way: str
) -> None:
    decoding = WAYS[way]
    alone = [written(writer, decoding, [row])[0] for row in range(7)]
    assert written(writer, decoding, [0, 1, 2], [3, 4, 5], [6]) == alone
    assert written(writer, decoding, [0, 1], [2, 3, 4, 5, 6]) == alone
    assert written(writer, decoding, range(7)) == alone
    lengths = {len(ids) for ids, _ in alone}  # type: ignore[arg-type]
    assert len(lengths) > 2, "reports of one length would never leave and enter"
    if not decoding.do_sample:
        appending = written(writer, decoding.model_copy(update={"cache": "growing"}), [6, 2, 4], [0, 1, 3, 5])
        order = [6, 2, 4, 0, 1, 3, 5]
        assert [ids for ids, _ in appending] == [alone[row][0] for row in order]
        for (_, scores), row in zip(appending, order, strict=True):
            assert scores == pytest.approx(alone[row][1], abs=1e-5)


@pytest.mark.parametrize("beams", [1, 2])
def test_cross_attention_reports_are_the_same_alone_and_in_any_batch(beams: int) -> None:
    torch.manual_seed(1)
    decoder = BertDecoderConfig(hidden_size=32, num_layers=1, num_heads=4).build(
        vocab_size=WORDS, bos_id=1, eos_id=2, pad_id=0
    )
    decoder.eval()
    decoding = DecodingConfig(max_new_tokens=MOST, num_beams=beams)

    def reports(*batches: Sequence[int], cache: str = "static") -> list[object]:
        batches_of_prompts = iter([prompts(rows, memory=True) for rows in batches])
        result = decoder.write(batches_of_prompts, decoding.model_copy(update={"cache": cache}))
        return [pair for ids, scores in result for pair in zip(ids, scores, strict=True)]

    alone = [reports([row])[0] for row in range(7)]
    assert reports([0, 1, 2], [3, 4, 5], [6]) == alone
    assert len({len(ids) for ids, _ in alone}) > 1  # type: ignore[misc]
    assert [ids for ids, _ in reports([1, 3, 4], cache="growing")] == [alone[row][0] for row in (1, 3, 4)]


def test_the_next_batch_enters_while_the_first_is_being_written(
    writer: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = WAYS["greedy"]
    lengths = [len(ids) for ids, _ in writer.write(iter([prompts([row]) for row in range(7)]), decoding) for ids in ids]
    assert lengths[0] != lengths[1]
    calls: list[object] = []
    steps: list[int] = []
    step = KVCache.step
    monkeypatch.setattr(
        KVCache, "step", lambda self, tokens, places: (steps.append(len(tokens)), step(self, tokens, places))
    )

    def batches() -> Iterator[Prefixes]:
        for rows in ([0, 1], [2, 3], [4, 5], [6]):
            calls.append(rows)
            yield prompts(rows)

    for number, _ in enumerate(writer.write(batches(), decoding)):
        calls.append(number)
    assert calls.index([2, 3]) < calls.index(0), "asked for when one of two was done"
    together = sum(max(pair) for pair in (lengths[:2], lengths[2:4], lengths[4:6], lengths[6:]))
    assert len(steps) < together
    assert max(steps) == 2, "never more at once than the first batch has"


def test_a_prompt_is_read_once_for_all_its_beams_and_draws(
    writer: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    reader = KVCache.prefill
    monkeypatch.setattr(
        KVCache, "prefill", lambda self, prompt: (read.append(len(prompt.embeds)), reader(self, prompt))[1]
    )
    written(writer, WAYS["beams"], [0, 1], [2])
    assert read == [LENGTHS[row] for row in (0, 1, 2)]
    read.clear()
    writer.write_draws([prompts([0]), prompts([1, 2])], WAYS["greedy"], 3)
    assert read == [LENGTHS[row] for row in (0, 1, 2)]


@pytest.mark.parametrize("cache", ["static", "growing"])
def test_draws_are_the_likeliest_report_and_drawn_ones_that_do_not_depend_on_other_studies(
    writer: CausalLanguageModel, cache: str
) -> None:
    decoding = WAYS["drawn"].model_copy(update={"cache": cache})
    batches_of_prompts = [prompts([1, 3]), prompts([5])]
    result = writer.write_draws(batches_of_prompts, decoding, 4)
    assert [len(reports) for reports in result] == [5, 5, 5]
    greedy = [ids for ids, _ in written(writer, WAYS["greedy"], [1, 3, 5])]
    assert [reports[0] for reports in result] == greedy
    assert writer.write_draws([prompts([3])], decoding, 4)[0] == result[1]
    assert any(len({tuple(ids) for ids in reports[1:]}) > 1 for reports in result), "draws differ"
    other = writer.write_draws(batches_of_prompts, decoding.model_copy(update={"seed": 4}), 4)
    assert [reports[1:] for reports in other] != [reports[1:] for reports in result]


def test_drawn_words_have_their_probabilities(writer: CausalLanguageModel) -> None:
    """Of 400 first words, each as often as the model says: five standard deviations, which is one miss in a million."""
    decoding = DecodingConfig(max_new_tokens=1, do_sample=True)
    (reports,) = writer.write_draws([prompts([2])], decoding, 400)
    one = prompts([2])
    with torch.no_grad():
        probabilities = writer.model(inputs_embeds=one.embeds).logits[0, -1].softmax(-1).tolist()
    drawn = [ids[0] if ids else 2 for ids in reports[1:]]
    for word, probability in enumerate(probabilities):
        spread = (400 * probability * (1 - probability)) ** 0.5
        assert abs(drawn.count(word) - 400 * probability) <= 5 * spread + 1, word


def test_a_longer_prompt_than_all_before_widens_the_cache(writer: CausalLanguageModel) -> None:
    decoding = WAYS["greedy"]
    long = Prefixes(
        torch.randn(1, 150, 32, generator=torch.Generator().manual_seed(8)), torch.ones(1, 150, dtype=torch.bool)
    )
    mixed = list(writer.write(iter([prompts([0, 1]), long, prompts([2])]), decoding))
    assert mixed[1] == next(writer.write(iter([long]), decoding))
    assert mixed[0] == next(writer.write(iter([prompts([0, 1])]), decoding))


def test_a_step_can_be_compiled_and_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is captured whole, once for all batches; what torch makes of it is for the slow test below."""
    captured: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        captured.append(graph)
        return graph.forward

    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, num_layers=1, num_heads=4, embedding_std=2.0)
    writer = config.build(vocab_size=WORDS, bos_id=1, eos_id=2, pad_id=0).eval()
    step = torch.compile(slots._forward, backend=backend, fullgraph=True, dynamic=False)
    monkeypatch.setattr(slots, "_compiled", lambda mode: step)
    monkeypatch.setattr(slots, "refuse_without_compiler", lambda device: None)
    plain = written(writer, WAYS["greedy"], [0, 1, 2], [3, 4, 5], [6])
    compiled = DecodingConfig(max_new_tokens=MOST, compile="default")
    assert written(writer, compiled, [0, 1, 2], [3, 4, 5], [6]) == plain
    assert len(captured) == 1


@pytest.mark.parametrize("memory", [False, True], ids=["prompt", "memory beside it"])
def test_a_compiled_step_writes_into_arrays_whose_addresses_stay(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch records a CUDA graph of a step only if each input that it writes into is marked so."""
    writes: list[tuple[set[int], set[int]]] = []

    def compiler(graph: torch.fx.GraphModule, _: object) -> object:
        facts = TracingContext.get().fw_metadata
        assert facts is not None
        written_into = {at for at, batches_of_prompts in enumerate(facts.input_info) if batches_of_prompts.mutates_data}
        writes.append((written_into, set(facts.static_input_indices)))
        return make_boxed_func(graph.forward)

    torch.manual_seed(0)
    config = (BertDecoderConfig if memory else LlamaConfig)(hidden_size=32, num_layers=2, num_heads=4)
    writer = config.build(vocab_size=WORDS, bos_id=1, eos_id=2, pad_id=0).eval()
    step = torch.compile(slots._forward, backend=aot_autograd(fw_compiler=compiler), fullgraph=True, dynamic=False)
    monkeypatch.setattr(slots, "_compiled", lambda mode: step)
    monkeypatch.setattr(slots, "refuse_without_compiler", lambda device: None)
    batches_of_prompts, decoding = prompts([0, 1, 2], memory=memory), DecodingConfig(max_new_tokens=4, min_new_tokens=4)
    with torch.inference_mode():  # as drafts are written
        plain = next(writer.write(iter([batches_of_prompts]), decoding))[0]
        compiled = decoding.model_copy(update={"compile": "reduce-overhead"})
        assert next(writer.write(iter([batches_of_prompts]), compiled))[0] == plain
    ((written_into, static),) = writes
    assert len(written_into) == 4, "keys and values of two layers"
    assert written_into <= static


@pytest.mark.parametrize("cache", ["static", "growing"])
def test_a_batch_of_no_study_has_no_report_wherever_it_comes(writer: CausalLanguageModel, cache: str) -> None:
    decoding, empty = WAYS["greedy"].model_copy(update={"cache": cache}), prompts([0]).only([])
    result = list(writer.write(iter([empty, empty, prompts([0, 1]), empty, prompts([2])]), decoding))
    one, other = (next(writer.write(iter([prompts(rows)]), decoding)) for rows in ([0, 1], [2]))
    assert result == [([], []), ([], []), one, ([], []), other]
    assert list(writer.write(iter([empty]), decoding)) == [([], [])]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("way", ["greedy", "beams"])
def test_a_compiled_step_writes_the_same_words(writer: CausalLanguageModel, mode: str, way: str) -> None:
    try:
        slots.refuse_without_compiler(torch.device("cpu"))
    except InputError as error:
        pytest.skip(str(error))
    plain = written(writer, WAYS[way], [0, 1, 2], [3, 4, 5], [6])
    compiled = written(writer, WAYS[way].model_copy(update={"compile": mode}), [0, 1, 2], [3, 4, 5], [6])
    assert [ids for ids, _ in compiled] == [ids for ids, _ in plain]


def test_models_that_cannot_be_compiled_are_refused(
    writer: CausalLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError, match="compile needs cache=static"):
        DecodingConfig(cache="growing", compile="default")
    compiled = DecodingConfig(max_new_tokens=2, compile="default")
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(InputError, match=r"C\+\+ compiler.*decoding\.compile|decoding\.compile.*C\+\+ compiler"):
        written(writer, compiled, [0])
    monkeypatch.setattr(slots, "FAMILIES", frozenset())
    with pytest.raises(InputError, match=r"decoding\.compile.*cannot be compiled"):
        written(writer, compiled, [0])
    assert written(writer, WAYS["greedy"], [0]), "a family that is not known writes with a growing cache"


def test_non_finite_scores_are_refused() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, num_layers=1, num_heads=4)
    broken = config.build(vocab_size=WORDS, bos_id=1, eos_id=2, pad_id=0).eval()
    broken.model.lm_head.weight.data[5] = torch.nan
    for way in WAYS.values():
        with pytest.raises(UnusableModelError, match="not finite"):
            written(broken, way, [0, 1])
