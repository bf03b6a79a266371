"""The stage that rewards drafts: its gradients, samples, edits, and how it runs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import escape
from torch import Tensor, nn

from radweave.cli.data import run_lines
from radweave.core.batch import Batch, Generation
from radweave.core.config import to_yaml
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine import reinforcement
from radweave.engine.distributed import Ranks
from radweave.engine.drafts import Draft, Drafter
from radweave.engine.estimate import build_on_meta
from radweave.engine.loop import StageTrainer, Watch
from radweave.engine.plan import refuse_impossible_stages, refuse_no_priors
from radweave.engine.reinforcement import (
    Drawn,
    Editor,
    Policy,
    RewardObjective,
    SameReading,
    _entropy,
    _with_one_end,
    advantages,
    divergence,
)
from radweave.engine.rewards import Rewards, TrainingTexts
from radweave.engine.run_folder import read_card
from radweave.engine.stages import TrainingWatch, _rewarded
from radweave.engine.train import train
from radweave.labels import get_labeler
from radweave.methods import resolve
from radweave.methods.model import ReportModel, ToWrite, Withheld, written
from radweave.methods.stage import RewardStageConfig
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.language_model import CausalLanguageModel, LlamaConfig, LoraConfig, NoLoraConfig
from tests.toys import TOY_CT_OVERRIDES, TOY_OVERRIDES, TOY_SIZES, write_followed_dataset

WORDS, PAD, EOS, MOST = 4, 0, 1, 2
EVERY = [[], *[[a] for a in (0, 2, 3)], *[[a, b] for a in (0, 2, 3) for b in (0, 2, 3)]]
"""All reports of at most two words of a vocabulary of four, one of which is the end."""


class Letters:
    """A tokenizer of one letter for each word."""

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return "".join("p.ab"[one] for one in ids)

    def encode(self, text: str, **options: Any) -> list[int]:
        return ["p.ab".index(letter) for letter in text]


class LetterRewards:
    """A number for every report: its place among all, a little more for one that begins like its reference."""

    def parts(self, texts: Sequence[str], references: Sequence[str], priors: Any = None) -> Mapping[str, Any]:
        names = [Letters().decode(ids) for ids in EVERY]
        values = [
            (names.index(text) * 5 % 13 + 2 * (text[:1] == reference[:1])) / 16
            for text, reference in zip(texts, references, strict=True)
        ]
        return {"place": np.array(values)}

    def total(self, parts: Mapping[str, Any]) -> Any:
        return parts["place"]


@dataclass(eq=False, repr=False, kw_only=True)
class Writer(ReportModel):
    """Writes after one vector for each study."""

    seen: nn.Embedding
    language_model: CausalLanguageModel
    terms = MappingProxyType({})

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        raise AssertionError

    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        raise AssertionError

    def to_write(self, batch: Batch) -> ToWrite:
        rows = torch.tensor([int(name) for name in batch.study_ids])
        mask = torch.ones(len(rows), 1, dtype=torch.bool)
        tokens = nn.functional.dropout(self.seen(rows), 0.5, self.training)[:, None]
        return ToWrite(Prefixes(tokens, mask), written)


def writer(*, lora: bool = False) -> Writer:
    torch.manual_seed(4)
    adapters = LoraConfig(rank=2) if lora else NoLoraConfig()
    shape = LlamaConfig(hidden_size=16, num_layers=1, num_heads=2, dropout=0.3, token_dropout=0.4, lora=adapters)
    language_model = shape.build(vocab_size=WORDS, bos_id=None, eos_id=EOS, pad_id=PAD)
    return Writer(seen=nn.Embedding(3, 16), language_model=language_model).train()


def studies(*numbers: int) -> Batch:
    return Batch([str(one) for one in numbers], ["p"] * len(numbers), reports=["ab"[one % 2] for one in numbers])


def objective(**changes: Any) -> RewardObjective:
    options: dict[str, Any] = {"epochs": 1, "edited": 0.0, "kl": 0.0, "samples": 2, "finetune": {"seen": "full"}}
    stage = RewardStageConfig.model_validate(options | changes)
    rewards: Any = LetterRewards()
    tokenizer: Any = Letters()
    decoding = DecodingConfig(max_new_tokens=MOST)
    return RewardObjective(stage, rewards, tokenizer, decoding, Editor(get_labeler("chexpert14")))


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    trained = [value for value in model.parameters() if value.requires_grad]
    parts = torch.autograd.grad(loss, trained, allow_unused=True, retain_graph=True)
    return torch.cat([
        (torch.zeros_like(value) if one is None else one).flatten() for one, value in zip(parts, trained, strict=True)
    ])  # fmt: skip


def log_prob(model: Writer, study: int, ids: Sequence[int], temperature: float = 1.0) -> list[Tensor]:
    """The log-probability of every word of a report and of its end, read word by word."""
    language_model, prefix = model.language_model, model.seen(torch.tensor([study]))[:, None]
    each: list[Tensor] = []
    for word in [*ids, EOS][:MOST]:
        before = torch.tensor([list(ids[: len(each)])], dtype=torch.long)
        embeds = torch.cat([prefix, language_model.embed(before)], dim=1)
        logits = language_model.model(inputs_embeds=embeds).logits[0, -1].float()
        each.append((logits / temperature).log_softmax(-1)[word])
    return each


def given(monkeypatch: pytest.MonkeyPatch, model: Writer, reports: Sequence[Sequence[list[int]]]) -> None:
    """Let the likeliest report and the samples of each study be these."""
    monkeypatch.setattr(
        CausalLanguageModel, "write_draws", lambda self, *arguments, **options: [list(own) for own in reports]
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_probabilities_of_all_reports_sum_to_one(temperature: float) -> None:
    model = writer().eval()
    drawn = Drawn.of(EVERY, [1] * len(EVERY), model.language_model, MOST)
    log_probs = drawn.chosen(Policy(model, temperature)(studies(0, 1), drawn))
    total = (log_probs * drawn.mask).sum(1)
    assert float(total.detach().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    own = [float(sum(log_prob(model, 1, ids, temperature), torch.zeros(()))) for ids in EVERY]
    assert total.tolist() == pytest.approx(own, abs=1e-5)


def test_self_critical_gradients_are_those_of_the_expected_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    model, scst = writer(), objective(algorithm="scst", samples=1)
    expected_gradient = torch.zeros(sum(value.numel() for value in model.parameters()))
    for ids in EVERY:
        given(monkeypatch, model, [[[3, 2], ids]])
        loss, _ = scst(model, studies(2))
        assert model.training, "the modes are restored"
        model.eval()
        probability = sum(log_prob(model, 2, ids), torch.zeros(())).exp().detach()
        expected_gradient = expected_gradient + probability * gradient(loss, model)
        model.train()
    model.eval()
    names = [Letters().decode(ids) for ids in EVERY]
    rewards = LetterRewards().parts(names, ["a"] * len(names))["place"]
    exact = sum(
        (sum(log_prob(model, 2, ids), torch.zeros(())).exp() * float(value)
         for ids, value in zip(EVERY, rewards, strict=True)),
        torch.zeros(()),
    )  # fmt: skip
    wanted = gradient(-exact, model)
    assert float(wanted.abs().max()) > 0.01
    assert torch.allclose(expected_gradient, wanted, atol=1e-5)


def test_group_relative_gradients_are_those_of_the_expected_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two samples the better one has the advantage 1: the expected gradient is that of the probability to be it,
    sum_y p(y) sum_z q(z) sign(r(y) - r(z)) / |y| with q = p, which is not differentiated."""
    model, grpo = writer().eval(), objective(algorithm="grpo", samples=2)
    names = [Letters().decode(ids) for ids in EVERY]
    rewards = LetterRewards().parts(names, ["a"] * len(names))["place"]
    log_probs = [sum(log_prob(model, 2, ids), torch.zeros(())) for ids in EVERY]
    q = [float(value.detach().exp()) for value in log_probs]
    expected_gradient = torch.zeros(sum(value.numel() for value in model.parameters()))
    for one, other in combinations(range(len(EVERY)), 2):
        given(monkeypatch, model, [[[3, 2], EVERY[one], EVERY[other]]])
        loss, _ = grpo(model, studies(2))
        expected_gradient += 2 * q[one] * q[other] * gradient(loss, model)
    exact = torch.zeros(())
    for ids, value, reward in zip(EVERY, log_probs, rewards, strict=True):
        gain = float(np.dot(q, np.sign(reward - rewards))) / len([*ids, EOS][:MOST])
        exact = exact + value.exp() * gain
    wanted = gradient(-exact, model)
    assert float(wanted.abs().max()) > 0.01
    assert torch.allclose(expected_gradient, wanted, atol=1e-5)


@pytest.mark.parametrize(("algorithm", "trained"), [("scst", "all"), ("grpo", "all"), ("grpo", "language_model")])
def test_gradients_of_given_samples_are_those_of_plain_loops(
    algorithm: str, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eq. 3 of the source as it is written: ratios to the weights that drew, clipped, and its divergence."""
    model = writer()
    rewarding = objective(algorithm=algorithm, samples=3, kl=0.3, temperature=0.8)
    model.seen.requires_grad_(trained == "all")
    rewarding.begin(model)
    passes: list[Batch] = []
    monkeypatch.setattr(
        Writer, "to_write", lambda self, batch, own=Writer.to_write: passes.append(batch) or own(self, batch)
    )
    before = writer().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.add_(torch.randn(value.shape, generator=generator), alpha=0.2)
    samples = [[[2], [3, 3], [], [2, 3]], [[3], [2, 2], [0, 3], [2]]]
    given(monkeypatch, model, samples)
    loss, figures = rewarding(model, studies(0, 1))
    found = gradient(loss, model)
    model.eval()
    total = torch.zeros(())
    for study, (likeliest, *own) in enumerate(samples):
        names = [Letters().decode(ids) for ids in (likeliest, *own)]
        first, *rewards = LetterRewards().parts(names, ["ab"[study]] * 4)["place"].tolist()
        mean, deviation = np.mean(rewards), np.std(rewards)
        for ids, value in zip(own, rewards, strict=True):
            now, then = log_prob(model, study, ids, 0.8), log_prob(before, study, ids, 0.8)
            gain = 0.0
            for p, q in zip(now, then, strict=True):
                ratio = (p - p.detach()).exp()
                clipped = torch.minimum(ratio * (value - mean), ratio.clamp(0.8, 1.2) * (value - mean)) / deviation
                term = p * (value - first) * len(now) if algorithm == "scst" else clipped
                other = q.detach() - p
                gain = gain + (term - 0.3 * (other.exp() - other - 1)) / len(now)
            total = total - gain / 6
    assert torch.allclose(found, gradient(total, model), atol=1e-5)
    assert len(passes) == (2 if trained == "all" else 1), "prefixes that do not train are read once"
    assert float(figures["kl"]) > 1e-3
    assert float(found.abs().max()) > 0.01


def test_figures_count_groups_that_say_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = writer()
    given(monkeypatch, model, [[[2], [3], [3]], [[2], [2], [2, 3]]])
    _, figures = objective()(model, studies(0, 1))
    assert float(figures["constant"]) == 0.5
    assert float(figures["distinct"]) == 0.75
    assert float(figures["length"]) == 2.0, "a word and its end; two words, where a report is cut"
    assert not caplog.messages
    given(monkeypatch, model, [[[2], [3], [3]]])
    loss, figures = objective()(model, studies(0))
    assert float(figures["constant"]) == 1.0
    assert "learns nothing" in caplog.text
    assert not gradient(loss, model).any()
    caplog.clear()
    monkeypatch.setattr(reinforcement, "count_over_batch", lambda count: count + 1)
    objective()(model, studies(0))
    assert not caplog.messages, "the slice of another process has a study that teaches"


def test_all_processes_choose_by_the_rewards_of_the_first_one() -> None:
    class Last(Ranks):
        def from_first(self, value: Any) -> Any:
            return {"reward": 0.5}

    rewards, texts = Rewards({"length": 1.0}, TrainingTexts((), get_labeler("chexpert14"))), {"a": "b b"}
    assert _rewarded(Last(1, 2), rewards, texts, texts, {}) == {"reward": 0.5}, "not its own, 1"
    assert _rewarded(Ranks(), rewards, texts, {"a": "b"}, {}) == {"reward": 0.5, "reward_length": 0.5, "distinct": 1.0}


def test_advantages_are_normalised_within_their_study_alone() -> None:
    rewards = torch.tensor([[0.2, 0.4, 0.9], [0.5, 0.5, 0.5]], dtype=torch.float64)
    values, constant = advantages(rewards, torch.tensor([0.3, 0.5], dtype=torch.float64), "grpo")
    row = np.array([0.2, 0.4, 0.9])
    assert values[0].tolist() == pytest.approx(((row - row.mean()) / row.std()).tolist(), abs=1e-12)
    assert values[1].tolist() == [0, 0, 0]
    assert constant.tolist() == [False, True]
    values, constant = advantages(rewards, torch.tensor([0.3, 0.5], dtype=torch.float64), "scst")
    assert values[0].tolist() == pytest.approx([-0.1, 0.1, 0.6], abs=1e-12)
    assert constant.tolist() == [False, True]


def test_studies_that_are_drawn_apart_have_their_own_numbers() -> None:
    model = writer().eval()
    with torch.no_grad():
        prompts = model.to_write(studies(0, 0, 0)).prefixes
    decoding = DecodingConfig(max_new_tokens=12, min_new_tokens=8, seed=3)
    alike = model.language_model.write_draws([prompts], decoding, 2)
    assert alike[0] == alike[1] == alike[2]
    apart = model.language_model.write_draws([prompts], decoding, 2, numbered_from=0)
    assert apart[0] == alike[0]
    assert len({str(own[1:]) for own in apart}) == 3
    assert len({str(own[0]) for own in apart}) == 1, "the likeliest one is not drawn"


def test_the_same_seed_draws_the_same_update_and_another_seed_another_one() -> None:
    def update(seed: int) -> tuple[float, dict[str, float]]:
        torch.manual_seed(seed)
        loss, figures = objective(samples=6)(writer_now, studies(0, 1, 2))
        return float(loss), {name: float(value) for name, value in figures.items()}

    writer_now = writer()
    assert update(1) == update(1)
    assert update(1) != update(2)


def test_equal_studies_of_a_batch_have_samples_of_their_own() -> None:
    seen: list[str] = []
    told: list[str | None] = []

    class Recorded(LetterRewards):
        def parts(self, texts: Sequence[str], references: Sequence[str], priors: Any = None) -> Mapping[str, Any]:
            seen[:], told[:] = texts, priors
            return super().parts(texts, references)

    rewarding = objective(samples=8)
    recorded: Any = Recorded()
    rewarding.rewards = recorded
    torch.manual_seed(0)
    rewarding(writer(), studies(1, 1))
    assert len(seen) == 18
    assert seen[:8] != seen[8:16]
    assert seen[16] == seen[17], "the likeliest one is not drawn"
    assert told == [None] * 18
    rewarding.priors = {"2": "before"}
    rewarding(writer(), studies(1, 2))
    assert told == [None] * 8 + ["before"] * 8 + [None, "before"]


def test_both_passes_over_a_batch_withhold_the_same_inputs() -> None:
    torch.manual_seed(0)
    reader = SameReading(Withheld({"image": 0.5}))
    slot = torch.zeros(64, 3, 2), torch.ones(64, 3, dtype=torch.bool)
    first, second = reader("image", slot)[1], reader("image", slot)[1]
    assert torch.equal(first, second)
    assert 0 < int(first.any(1).sum()) < 64


REFERENCE = "The heart is enlarged. Small left pleural effusion. The lungs are clear."


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        # Put in, in place of what denies it; and what the reference takes back is taken out.
        (
            "No pleural effusion. The heart is enlarged.",
            {"Small left pleural effusion. The heart is enlarged.", "The heart is enlarged."},
        ),
        # All findings stated already: any sentence of the reference.
        (
            "The heart is enlarged. Small left pleural effusion.",
            {"The lungs are clear. The heart is enlarged. Small left pleural effusion."},
        ),
        (REFERENCE, {REFERENCE}),
        ("", {"The heart is enlarged.", "Small left pleural effusion."}),
    ],
)
def test_an_edit_brings_a_report_towards_its_reference(text: str, edits: set[str]) -> None:
    editor = Editor(get_labeler("chexpert14"))
    assert {editor.edit(text, REFERENCE, random.Random(seed)) for seed in range(40)} == edits


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        (
            "FINDINGS: The lungs are clear. IMPRESSION: Normal bones.",
            {
                "FINDINGS: Small left pleural effusion. The lungs are clear. IMPRESSION: Normal bones.",
                "FINDINGS: The lungs are clear. IMPRESSION: Left effusion. Normal bones.",
            },
        ),
        # Cut before its second section, or without any.
        (
            "FINDINGS: The lungs are clear.",
            {f"FINDINGS: {one}. The lungs are clear." for one in ("Small left pleural effusion", "Left effusion")},
        ),
        (
            "The lungs are clear.",
            {f"{one}. The lungs are clear." for one in ("Small left pleural effusion", "Left effusion")},
        ),
    ],
)
def test_a_sentence_comes_into_its_section_or_into_the_one_that_there_is(text: str, edits: set[str]) -> None:
    editor, reference = (
        Editor(get_labeler("chexpert14")),
        "FINDINGS: Small left pleural effusion. IMPRESSION: Left effusion.",
    )
    assert {editor.edit(text, reference, random.Random(seed)) for seed in range(40)} == edits


def test_a_sentence_of_a_report_without_sections_comes_into_the_first_one() -> None:
    text = "FINDINGS: The lungs are clear. IMPRESSION: Normal bones."
    edited = Editor(get_labeler("chexpert14")).edit(text, "Small left pleural effusion.", random.Random(0))
    assert edited == "FINDINGS: Small left pleural effusion. The lungs are clear. IMPRESSION: Normal bones."


def test_edited_samples_are_a_share_of_the_group_and_no_part_of_what_is_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, rewarding = writer(), objective(samples=4, edited=0.5)
    monkeypatch.setattr(rewarding.editor.__class__, "edit", lambda self, text, reference, draws: "ab")
    given(monkeypatch, model, [[[2], [3], [3], [3], [3]]])
    loss, figures = rewarding(model, studies(0))
    assert float(figures["distinct"]) == 0.5
    assert float(figures["constant"]) == 0.0
    assert float(figures["reward_edited"]) == LetterRewards().parts(["ab"], ["a"])["place"][0]
    assert float(figures["reward"]) == LetterRewards().parts(["b"], ["a"])["place"][0]
    assert gradient(loss, model).any()


def test_a_reward_reads_no_more_of_an_edited_sample_than_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rewarding = writer(), objective(samples=2, edited=0.5)
    monkeypatch.setattr(rewarding.editor.__class__, "edit", lambda self, text, reference, draws: "abba")
    given(monkeypatch, model, [[[2], [3], [3]]])
    _, figures = rewarding(model, studies(0))
    assert float(figures["reward_edited"]) == LetterRewards().parts(["ab"], ["a"])["place"][0]


def test_the_gradient_of_the_divergence_is_in_expectation_that_of_the_model_of_before() -> None:
    """Value KL(p || q); gradient of KL(q || p), since what draws is not differentiated."""
    generator = torch.Generator().manual_seed(0)
    scores, other = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    scores.requires_grad_()
    p, q = scores.log_softmax(0), other.log_softmax(0)
    one = torch.ones(1, 1, dtype=torch.bool)
    each = [divergence(p[word].reshape(1, 1), q[word].reshape(1, 1), one) for word in range(5)]
    expected = sum((p[word].detach().exp() * value for word, value in enumerate(each)), torch.zeros(()))
    assert float(expected.detach()) == pytest.approx(float((p.exp() * (p - q)).sum().detach()), abs=1e-12)
    (found,) = torch.autograd.grad(expected, scores, retain_graph=True)
    (wanted,) = torch.autograd.grad((q.exp() * (q - p)).sum(), scores)
    torch.testing.assert_close(found, wanted)
    assert float(wanted.abs().max()) > 0.01


# The stage in the loop.


class Numbers:
    """Three batches of two studies an epoch."""

    steps_per_epoch = 3

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        for step in range(first_step, 3):
            yield studies(step, (step + 1) % 3)


def rewarded_stage(folder: Path, watch: Watch | None = None, *, lora: bool = False, **changes: Any) -> StageTrainer:
    parts = {"language_model": "lora"} if lora else {"seen": "full", "language_model": "full"}
    options = {
        "epochs": 2, "samples": 3, "kl": 0.1, "finetune": parts, "select": "last", "checkpoint_every": 1,
        "optimizer": {"learning_rate": 0.05, "warmup_steps": 0},
    }  # fmt: skip
    rewarding = objective(**options | changes)
    batches: Any = Numbers()
    folder.mkdir(exist_ok=True)
    return StageTrainer(
        model=writer(lora=lora), stage=rewarding.stage, batches=batches, name="reward", seed=3, folder=folder,
        validate=lambda: {"reward": 0.0}, fingerprint="f", watch=watch or Watch(), objective=rewarding,
    )  # fmt: skip


class Killed(BaseException):
    """Stands for a SIGKILL between two updates."""


@pytest.mark.parametrize(("algorithm", "lora"), [("scst", False), ("grpo", False), ("grpo", True)])
def test_a_stage_killed_at_any_step_resumes_to_the_same_weights(tmp_path: Path, algorithm: str, lora: bool) -> None:
    whole = rewarded_stage(tmp_path / "whole", algorithm=algorithm, lora=lora)
    start = {name: value.clone() for name, value in whole.model.state_dict().items()}
    whole.run()

    def killed(number: int, total: int, figures: dict[str, float]) -> None:
        if number == 4:
            raise Killed

    with pytest.raises(Killed):
        rewarded_stage(tmp_path / "cut", Watch(step=killed), algorithm=algorithm, lora=lora).run()
    cut = rewarded_stage(tmp_path / "cut", algorithm=algorithm, lora=lora)
    cut.run()
    for (name, value), other in zip(whole.model.state_dict().items(), cut.model.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    changed = {name for name, value in whole.model.state_dict().items() if not torch.equal(value, start[name])}
    assert changed
    assert not lora or all("lora_" in name for name in changed), "adapters alone"

    def rows(folder: str) -> list[dict[str, float]]:
        lines = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "studies_per_s"} for line in lines]

    assert rows("cut") == rows("whole")
    figures = {"reward", "reward_place", "reward_likeliest", "kl", "entropy", "length", "distinct", "constant"}
    before, first = rows("whole")[:2]
    assert (before["step"], before["validation"]) == (0, {"reward": 0.0})
    assert figures < first.keys()
    assert first["kl"] == 0.0
    assert rows("whole")[5]["kl"] > 0.0


def test_a_stage_that_only_worsens_the_reward_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    stage = rewarded_stage(tmp_path / "run", select="reward")
    judged = iter([0.5, 0.4, 0.3])
    stage.validate = lambda: {"reward": next(judged)}
    start = {name: value.clone() for name, value in stage.model.state_dict().items()}
    assert stage.run().best_step == 0
    assert all(torch.equal(value, start[name]) for name, value in stage.model.state_dict().items())
    better = rewarded_stage(tmp_path / "better", select="reward")
    judged = iter([0.5, 0.6, 0.3])
    better.validate = lambda: {"reward": next(judged)}
    assert better.run().best_step == 3


def test_updates_raise_the_reward(tmp_path: Path) -> None:
    rewarded_stage(tmp_path / "run", epochs=20, samples=8, kl=0.0).run()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward"] for row in rows if "reward" in row]
    assert np.mean(rewards[-9:]) > np.mean(rewards[:9]) + 0.1


def test_without_epochs_a_configuration_is_the_one_of_before() -> None:
    plain = resolve("baseline", "tiny", [])
    assert "reward" not in plain.stages.model_dump()
    assert list(plain.named_stages())[-1] == "report"
    text = to_yaml(plain)
    assert to_yaml(type(plain).model_validate(plain.model_dump(mode="json"))) == text
    changed = resolve("baseline", "tiny", ["stages.reward.epochs=2", "stages.reward.rewards.bleu=2"])
    stage = changed.named_stages()["reward"]
    assert isinstance(stage, RewardStageConfig)
    assert list(changed.named_stages())[-1] == "reward"
    assert changed.report_stage == "report"
    assert stage.finetune == changed.named_stages()["report"].finetune
    assert stage.rewards == {**RewardStageConfig().rewards, "bleu": 2.0}
    assert type(changed).model_validate(changed.model_dump(mode="json")) == changed


@pytest.mark.parametrize(
    ("method", "overrides", "reason"),
    [
        ("baseline", ["stages.reward.rewards.clarity=1"], "no such reward"),
        ("baseline", ["stages.reward.rewards.radgraph=1"], "needs a local folder with RadGraph's weights"),
        ("baseline", ["stages.reward.rewards.radgraph=1", "stages.reward.radgraph=/nowhere"], "no folder with"),
        ("baseline", ["stages.reward.radgraph=/nowhere"], "which rewards does not name"),
        ("baseline", ["stages.reward.samples=1"], "samples must be 2 or more"),
        ("baseline", ["stages.reward.rewards={findings: 0}"], "no reward has a weight above 0"),
        ("baseline", ["stages.reward.rewards.cider=-1"], "greater than or equal to 0"),
        ("baseline", ["stages.reward.edited=1"], "less than 1"),
        ("baseline", ["stages.reward.edited=0.9"], "edited=0.9 of 4 samples leaves none that is drawn"),
        ("baseline", ["stages.reward.rewards.cider=inf"], "less than or equal to 1000000"),
        ("baseline", ["stages.reward.kl=inf"], "less than or equal to 1000000"),
        ("baseline", ["stages.reward.compiled=networks"], "compiled must be nothing"),
        ("baseline", ["stages.reward.select=loss"], "selects nothing"),
        ("baseline", ["stages.report.select=reward"], "stage that rewards drafts"),
        ("baseline", ["stages.reward.finetune={vision_encoder: full}"], "must be frozen as in the stage before"),
        ("baseline", ["stages.reward.finetune={word_head: full}"], "reads a part that trains.*language_model"),
        ("baseline", ["stages.report.finetune={word_head: full}"], "reads a part that trains.*language_model"),
        ("baseline", ["stages.reward.break_even=0.125"], "which rewards does not name"),
        ("baseline", ["stages.reward.break_even=0", "stages.reward.rewards.statements=1"], "greater than 0"),
        ("baseline", ["stages.reward.break_even=1", "stages.reward.rewards.statements=1"], "less than 1"),
        ("baseline", ["stages.reward.losses={diagnosis: 1}"], "no such loss"),
        ("baseline", ["stages.reward.losses={report: -1}"], "greater than or equal to 0"),
        ("baseline", ["stages.report.losses.report=inf"], "less than or equal to 1000000"),
        ("baseline", ["stages.report.losses.report=nan"], "stages.report.losses.report"),
        ("kernels", [], "no language model whose reports"),
    ],
)
def test_a_stage_that_cannot_be_is_refused_before_anything_trains(
    method: str, overrides: list[str], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        experiment = resolve(
            method, "tiny", [*(TOY_OVERRIDES if method == "baseline" else ()), "stages.reward.epochs=1", *overrides]
        )
        refuse_impossible_stages(experiment, build_on_meta(experiment))


def test_changes_are_rewarded_only_where_there_are_priors(toy_dataset: Dataset, tmp_path: Path) -> None:
    experiment = resolve("baseline", "tiny", ["stages.reward.epochs=1", "stages.reward.rewards.change=1"])
    with pytest.raises(InputError, match=r"stages\.reward\.rewards.*no change to reward"):
        refuse_no_priors(experiment, toy_dataset)
    refuse_no_priors(experiment, write_followed_dataset(tmp_path / "followed"))
    refuse_no_priors(resolve("baseline", "tiny", ["stages.reward.epochs=1"]), toy_dataset)


@pytest.mark.parametrize(("method", "algorithm"), [("baseline", "grpo"), ("diffrgennet", "scst")])
def test_a_method_trains_on_rewards_after_its_reports(
    method: str, algorithm: str, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collapsed, notes = method == "diffrgennet", list[str]()
    if collapsed:
        monkeypatch.setattr(
            Drafter, "drafts", lambda self, examples, **options: (Draft(one, "Clear.", {}) for one in examples)
        )
    options = [
        "stages.report.epochs=1", "stages.reward.epochs=1", "stages.reward.batch_size=8", "stages.reward.samples=3",
        "stages.reward.optimizer.warmup_steps=1", f"stages.reward.algorithm={algorithm}",
        "stages.reward.rewards.length=1", "stages.reward.select=last", "decoding.max_new_tokens=8",
    ]  # fmt: skip
    watch = TrainingWatch(note=notes.append)
    overrides = [*TOY_OVERRIDES, *TOY_SIZES[method], *options]
    run = train(method, toy_dataset.path, tmp_path / "run", overrides=overrides, watch=watch)
    card = json.loads((run / "run.json").read_text())
    assert list(card["trained_steps"].items())[-2:] == [("report", 3), ("reward", 2)]
    assert any("barely trained: 3 updates" in caution for caution in card["cautions"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    own = [row for row in rows if row["stage"] == "reward"]
    before, *updates, validated = own
    assert "validation" in before
    named = {"reward", "reward_findings", "reward_cider", "reward_length", "reward_repetition", "distinct"}
    assert all(named <= row.keys() for row in updates)
    assert {*named, "report", "BLEU_4", "CIDEr"} <= validated["validation"].keys()
    assert updates[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    reports = [study.report for study in toy_dataset.studies("val")]
    assert [report for _, report in validated["drafts"]] == [reports[0], reports[1], reports[2]]
    page = (run / "reward.html").read_text()
    assert all(str(escape(draft or "(empty)")) in page for draft, _ in validated["drafts"])
    if collapsed:
        assert validated["validation"]["distinct"] == 1 / 4
        assert "the rewarded decoder writes one and the same report for every validation study" in notes
    assert f"course of the rewards: {run / 'reward.html'}" in "\n".join(run_lines(run, read_card(run)))


@pytest.mark.long
def test_scans_are_rewarded_through_adapters_and_a_killed_run_resumes_to_the_same_bits(
    toy_ct_dataset: Dataset, tmp_path: Path
) -> None:
    options = [
        *TOY_CT_OVERRIDES, "model.language_model.lora=lora", "stages.encoder.epochs=1", "stages.report.max_steps=1",
        "stages.reward.epochs=2", "stages.reward.batch_size=4", "stages.reward.samples=3", "stages.reward.max_steps=4",
        "stages.reward.checkpoint_every=1", "stages.reward.finetune.language_model=lora", "stages.reward.select=last",
    ]  # fmt: skip

    def run(name: str, **more: Any) -> Path:
        return train("baseline", toy_ct_dataset.path, tmp_path / name, preset="tiny-ct", overrides=options, **more)

    def killed(number: int, total: int, figures: dict[str, float]) -> None:
        if number == 2:
            raise Killed

    watch = TrainingWatch(stage=lambda name: Watch(step=killed) if name == "reward" else Watch())
    whole = run("whole")
    with pytest.raises(Killed):
        run("cut", watch=watch)
    cut = run("cut", resume=True)
    assert (cut / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    updates = [row for row in rows if row["stage"] == "reward" and "loss" in row]
    assert len(updates) == 4
    assert all(row["reward"] > 0 and row["entropy"] > 0 for row in updates)


def test_a_sample_may_have_ended_by_any_end() -> None:
    """The probability of the end is that of all ends, and what else there is keeps its own."""
    log_probs = torch.randn(2, 3, 7, dtype=torch.float64).log_softmax(-1)
    merged = _with_one_end(log_probs, (2, 5), 2)
    expected = log_probs.exp()
    expected[..., 2] += expected[..., 5]
    expected[..., 5] = 0
    torch.testing.assert_close(merged.exp(), expected)
    assert torch.isfinite(_entropy(merged)).all()
    assert _with_one_end(log_probs, (2,), 2) is log_probs
