"""AM-MRG: regions, banks and memories against the paper's equations, and what a run keeps of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from radweave.core.batch import VisionFeatures
from radweave.core.errors import InputError
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.methods import resolve
from radweave.methods.am_mrg import PRESETS
from radweave.methods.am_mrg import model as am_mrg
from radweave.methods.am_mrg.disease_queries import QueryFormerConfig
from radweave.methods.am_mrg.memory import NoMemory, ReportMemoryConfig
from radweave.methods.am_mrg.model import AmMrgModel, Forward, pooled
from radweave.methods.am_mrg.regions import (
    CappedDraw,
    Region,
    apart,
    build_visual_bank,
    find_regions,
    masked_views,
    region_patterns,
    stated_diseases,
)
from radweave.methods.am_mrg.report_bank import ReportDrawConfig, build_report_bank, draw_reports, report_sentences
from radweave.methods.model import TrainingView
from radweave.methods.stage import apply_finetune
from radweave.nn import hopfield
from radweave.nn.cam import cell_means
from radweave.nn.connector import ViewTokens
from radweave.nn.hopfield import AttentionRuleConfig, Patterns
from radweave.nn.memory.bank import Bank, load_bank, patient_code
from radweave.nn.study_norm import OverStudies
from radweave.nn.text_encoder import LsaTextEncoder
from tests.toys import TOY_OVERRIDES, TOY_SIZES, bench_program

OVERRIDES = (*TOY_OVERRIDES, *TOY_SIZES["am_mrg"], "stages.report.epochs=1", "stages.report.select=loss")


@pytest.fixture(scope="module")
def run_folder(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose banks are built; its weights have hardly learned."""
    return train("am_mrg", toy_dataset.path, tmp_path_factory.mktemp("am_mrg") / "run", overrides=OVERRIDES)


@pytest.fixture
def run(run_folder: Path) -> Run:
    return restore(run_folder)


def training_view(dataset: Dataset, *, image_size: int = 32, classes: int = 14) -> TrainingView:
    """The toy data set's training split with made-up pixels and labels."""
    generator = torch.Generator().manual_seed(0)
    studies = tuple(dataset.studies("train"))
    examples = tuple(
        Example(
            study_id=study.study_id,
            patient_id=study.patient_id,
            source=torch.randint(0, 255, (2, image_size, image_size), generator=generator, dtype=torch.uint8).numpy(),
            rows=(0, 1) if number % 3 == 0 else (0,),
            view_ids=(1, 2) if number % 3 == 0 else (1,),
            class_states=tuple(torch.randint(0, 3, (classes,), generator=generator).tolist()),
            report=study.report,
        )
        for number, study in enumerate(studies)
    )
    names = tuple(f"class {number}" for number in range(classes))
    return TrainingView(studies=studies, examples=examples, classes=names, pad_id=0, seed=3)


def test_disease_queries_are_pushed_apart() -> None:
    torch.manual_seed(0)
    config = QueryFormerConfig(dim=12, num_layers=2, num_heads=3, num_image_queries=5, orthogonal="queries")
    former = config.build(4, 6)
    features = torch.randn(2, 4, 12)
    queries = former.transformer.queries.detach()[:4]
    cosines = [
        float(a @ b / (a.norm() * b.norm())) ** 2
        for i, a in enumerate(queries)
        for j, b in enumerate(queries)
        if i != j
    ]
    assert float(former.orthogonality(features).detach()) == pytest.approx(sum(cosines) / 12, rel=1e-5)
    with torch.no_grad():
        former.transformer.queries[:4] = torch.eye(4, 12)
    assert float(former.orthogonality(features).detach()) == 0
    reading = former(torch.randn(2, 9, 6), torch.ones(2, 9).bool())
    assert reading.diseases.shape == (2, 4, 12)
    assert reading.image.shape == (2, 5, 12)


def test_orthogonal_features_are_those_that_vary_apart_over_the_batch() -> None:
    torch.manual_seed(0)
    former = QueryFormerConfig(dim=12, num_layers=1, num_heads=3).build(4, 6)
    features = torch.randn(3, 4, 12)
    means = features.mean(0)
    cosines = []
    for study in features - means:
        for i in range(4):
            cosines += [float(study[i] @ study[j] / study[i].norm() / study[j].norm()) for j in range(4) if i != j]
    expected = sum(cosine**2 for cosine in cosines) / len(cosines)
    assert float(former.orthogonality(features)) == pytest.approx(expected, rel=1e-5)
    # What all studies have in common does not count, nor does one study alone.
    moved = features + torch.randn(4, 12)
    torch.testing.assert_close(former.orthogonality(moved), former.orthogonality(features))
    alone = features[:1].clone().requires_grad_()
    loss = former.orthogonality(alone)
    loss.backward()
    assert float(loss.detach()) == 0
    assert alone.grad is not None
    assert torch.equal(alone.grad, torch.zeros_like(alone))
    # Diseases that vary alike have the most to lose.
    alike = torch.randn(3, 1, 12).expand(3, 4, 12)
    assert float(former.orthogonality(alike)) == pytest.approx(1, rel=1e-5)


def test_a_step_on_orthogonal_features_changes_what_the_decoder_reads(run_folder: Path) -> None:
    """The loss of the printed form, on queries, starts at its end and moves F_d far less."""
    moved = {}
    for orthogonal in ("features", "queries"):
        model: AmMrgModel = restore(run_folder).model  # type: ignore[assignment]
        model.query_former.orthogonal = orthogonal
        torch.manual_seed(0)
        batch = toy_batch(studies=4)
        apply_finetune(model, {"query_former": "full"})
        before, prefix = Forward(model, batch).reading.diseases.detach(), Forward(model, batch).prefix[0].detach()
        first = model.loss(batch, ("orthogonality",))["orthogonality"]
        optimizer = torch.optim.SGD(model.query_former.parameters(), lr=0.1)
        first.backward()
        optimizer.step()
        with torch.no_grad():
            after, again = Forward(model, batch).reading.diseases, Forward(model, batch).prefix[0]
            second = model.loss(batch, ("orthogonality",))["orthogonality"]
        assert float(second) < float(first.detach())
        moved[orthogonal] = [float((x - y).norm() / y.norm()) for x, y in ((after, before), (again, prefix))]
    assert min(moved["features"]) > 0.005
    assert moved["features"][0] > 3 * moved["queries"][0]


def test_image_queries_get_gradients_from_the_disease_queries() -> None:
    torch.manual_seed(0)
    former = QueryFormerConfig(dim=12, num_layers=2, num_heads=3, num_image_queries=5).build(4, 6)
    former(torch.randn(2, 9, 6), torch.ones(2, 9).bool()).diseases[..., 0].sum().backward()
    gradient = former.transformer.queries.grad
    assert gradient is not None
    assert (gradient[4:].abs().amax(1) > 0).all()


def test_regions_are_cells_above_the_threshold_strongest_first() -> None:
    cells = torch.tensor([[[0.9, 0.2], [0.75, 0.8]], [[0.1, 0.76], [0.3, 1.0]]])
    result = find_regions(cells, threshold=0.75)
    assert [(region.view, region.row, region.column) for region in result] == [
        (1, 1, 1),
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 1),
    ]
    assert [round(region.activation, 2) for region in result] == [1.0, 0.9, 0.8, 0.76]
    assert find_regions(cells * 0.5, threshold=0.75) == []


def test_of_cells_that_share_tokens_the_strongest_is_a_region_and_six_are_six() -> None:
    # 14 x 14 cells on a 7 x 7 grid, as Swin has: four cells share a token.
    cells = [Region(0, 2, 4, 0.9), Region(0, 3, 5, 0.8), Region(1, 3, 5, 0.8), Region(0, 4, 4, 0.7)]
    assert [region.activation for region in apart(cells, (7, 7), 16, 224, most=6)] == [0.9, 0.8, 0.7]
    assert apart(cells, (7, 7), 16, 224, most=2) == [cells[0], cells[2]]
    # As many as asked for, though the four strongest cells are one token.
    all_cells = [Region(0, row, column, 1.0) for row in range(14) for column in range(14)]
    assert len(apart(all_cells, (7, 7), 16, 224, most=6)) == 6
    assert apart(all_cells, (14, 14), 16, 224, most=6) == all_cells[:6]


def test_the_masked_image_is_equation_1() -> None:
    pixels = torch.rand(2, 1, 40, 40) + 0.1
    regions = [Region(0, 1, 0, 0.9), Region(1, 2, 2, 0.8)]  # the last cell is cut at the border
    masked = masked_views(pixels, regions, 16)
    for view in range(2):
        for i in range(40):
            for j in range(40):
                inside = any(r.view == view and i // 16 == r.row and j // 16 == r.column for r in regions)
                assert masked[view, 0, i, j] == (pixels[view, 0, i, j] if inside else 0)


def test_a_region_is_the_mean_of_the_tokens_that_its_cell_touches() -> None:
    tokens = torch.rand(1, 16, 3)
    grid = tokens.view(4, 4, 3)
    patterns = region_patterns(tokens, (4, 4), [Region(0, 0, 1, 0.9)], cell=16, image_size=32)
    torch.testing.assert_close(patterns[0], grid[0:2, 2:4].mean((0, 1)))
    coarse = torch.rand(1, 49, 3)
    cells = [Region(0, 2, 4, 0.9), Region(0, 4, 4, 0.7)]
    patterns = region_patterns(coarse, (7, 7), cells, cell=16, image_size=224)
    torch.testing.assert_close(patterns, torch.stack([coarse[0, 7 + 2], coarse[0, 14 + 2]]))


def test_every_study_is_looked_at_for_the_diseases_that_it_states() -> None:
    states = torch.tensor([[1, 0, 2], [0, 2, 3], [1, 1, -1], [0, 0, 1]])
    assert stated_diseases(states) == [(0, [0]), (2, [0, 1]), (3, [2])]


def test_a_draw_holds_its_cap_and_gives_each_the_same_chance() -> None:
    counts = [0] * 30
    for seed in range(400):
        draw: CappedDraw[int] = CappedDraw(10, [seed, 0])
        for number in range(30):
            draw.offer(number)
            assert len(draw.drawn()) == min(number + 1, 10)
        assert draw.drawn() == sorted(set(draw.drawn())), "in the order of the split"
        for number in draw.drawn():
            counts[number] += 1
    # 400 draws of a third each: standard deviation 9.4.
    assert all(abs(count - 400 / 3) < 5 * 9.5 for count in counts)


class _Encoder(nn.Module):
    """Means of 8 x 8 pixels in three channels."""

    def __init__(self) -> None:
        super().__init__()
        self.dim, self.channels = 3, 1
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))

    def forward(self, pixel_values: Tensor) -> Any:
        means = torch.nn.functional.avg_pool2d(pixel_values, 8)
        tokens = means.flatten(2).transpose(1, 2) * self.weight
        return VisionFeatures(tokens, (means.shape[2], means.shape[3]))


def _score(tokens: Tensor, mask: Tensor) -> Tensor:
    """Class k looks at the brightest patches, more or less sharply."""
    bright = tokens[..., 0].flatten(1)
    return torch.stack([torch.logsumexp(bright * (number + 1), 1) for number in range(14)], 1)


def test_the_visual_bank_is_the_same_twice_and_names_where_it_comes_from(toy_dataset: Dataset) -> None:
    view, encoder = training_view(toy_dataset), _Encoder()
    config = am_mrg.RegionConfig(threshold=0.5, regions_per_disease=7)
    first, second = (build_visual_bank(view, encoder, _score, config) for _ in range(2))
    assert torch.equal(first.tensors["patterns"], second.tensors["patterns"])
    assert first.rows == second.rows
    assert len(first) > 0
    known = {study.study_id: study.patient_id for study in view.studies}
    states = {example.study_id: example.class_states for example in view.examples}
    for row, pattern in zip(first.rows, first.tensors["patterns"], strict=True):
        assert row["patient"] == patient_code(known[row["study_id"]])
        assert states[row["study_id"]][view.classes.index(row["disease"])] == 1, "only diseases the report states"  # type: ignore[index]
        assert row["activation"] > 0.5
        # The pattern is what the encoder says of that cell, all else dark: the cell's own mean pixels.
        example = next(example for example in view.examples if example.study_id == row["study_id"])
        top, left = (16 * place for place in row["cell"])
        mean = torch.from_numpy(example.pixels[row["view"]]).float()[top : top + 16, left : left + 16].mean() / 255
        torch.testing.assert_close(pattern, mean * encoder.weight.detach(), rtol=1e-4, atol=1e-6)
    diseases = [row["disease"] for row in first.rows]
    assert max(diseases.count(name) for name in view.classes) == 7
    with torch.no_grad():
        encoder.weight *= 2
    changed = build_visual_bank(view, encoder, _score, config)
    assert not torch.equal(changed.tensors["patterns"], first.tensors["patterns"]), "another encoder, another bank"


class _WideEncoder(_Encoder):
    """Each token also holds the mean of the whole image: what is dark elsewhere shows in it."""

    def forward(self, pixel_values: Tensor) -> Any:
        features = super().forward(pixel_values)
        return VisionFeatures(features.tokens + features.tokens.mean(1, keepdim=True), features.grid)


def test_patterns_are_of_the_masked_image_and_the_seed_decides_which_stay(toy_dataset: Dataset) -> None:
    view, encoder = training_view(toy_dataset), _WideEncoder()
    bank = build_visual_bank(view, encoder, _score, am_mrg.RegionConfig(threshold=0.5))
    examples = {example.study_id: example for example in view.examples}
    of_image: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(bank.rows):
        of_image.setdefault((row["study_id"], row["disease"]), []).append(number)
    assert any(len(numbers) > 1 for numbers in of_image.values())
    # These maps all have a positive place: no study that states a disease is without a region of it.
    assert len(of_image) == int((view.class_states == 1).sum())
    for (study_id, _), numbers in of_image.items():
        regions = [Region(bank.rows[n]["view"], *bank.rows[n]["cell"], bank.rows[n]["activation"]) for n in numbers]
        pixels = torch.from_numpy(examples[study_id].pixels).float()[:, None] / 255
        with torch.no_grad():
            encoded = encoder(masked_views(pixels, regions, 16))
            expected = region_patterns(encoded.tokens, encoded.grid, regions, 16, 32)
        torch.testing.assert_close(bank.tensors["patterns"][numbers], expected, rtol=1e-4, atol=1e-6)
    # All studies are looked at, and of their regions the seed lets some stay: as many as there may be.
    config = am_mrg.RegionConfig(threshold=0.5, regions_per_disease=7)
    diseases = [row["disease"] for row in bank.rows]
    capped = [row["disease"] for row in build_visual_bank(view, encoder, _score, config).rows]
    for name in view.classes:
        assert capped.count(name) == min(7, diseases.count(name)), name
    one, other = (build_visual_bank(replace(view, seed=seed), encoder, _score, config).rows for seed in (3, 4))
    assert one != other


def test_the_figure_of_regions_shows_the_strongest_of_each_study() -> None:
    """``bench/am_mrg_regions.py``: diseases with the most regions, one of each study, equals in the bank's order."""
    program = bench_program("am_mrg_regions")
    mined = {
        "Edema": [("c", 1.0)],
        "Fracture": [("a", 0.6), ("b", 1.0), ("c", 1.0)],
        "Effusion": [("b", 0.9), ("a", 0.7), ("b", 1.0), ("c", 0.8)],
    }
    rows = tuple(
        {"disease": disease, "study_id": study, "activation": activation}
        for disease, regions in mined.items()
        for study, activation in regions
    )
    best = program.strongest(rows, regions=2, classes=2)
    shown = [(name, [(row["study_id"], row["activation"]) for row in best[name]]) for name in best]
    assert shown == [("Effusion", [("b", 1.0), ("c", 0.8)]), ("Fracture", [("b", 1.0), ("c", 1.0)])]
    assert [len(regions) for regions in program.strongest(rows, regions=4, classes=8).values()] == [3, 3, 1]


def test_the_figure_shows_the_maps_that_regions_were_mined_from(run: Run, toy_dataset: Dataset) -> None:
    """The mean of a region's cell on the map is the activation that the bank has of it."""
    program = bench_program("am_mrg_regions")
    data = run.experiment.data
    cache = build_cache(toy_dataset, size=data.image_size)
    prepared = prepare(toy_dataset, "train", run.experiment, run.tokenizer, cache, need_text=True)
    examples = {example.study_id: example for example in prepared.examples}
    rows = load_bank(run.folder / "memories" / am_mrg.REGIONS).rows[:8]
    assert rows
    cell = run.model.sources.regions.cell
    for row in rows:
        disease = list(run.card.classes).index(row["disease"])
        heat = program.activation_map(run.model, examples[row["study_id"]], disease, row["view"])
        line, column = row["cell"]
        mean = cell_means(torch.from_numpy(heat)[None], data.image_size, cell)[0, line, column]
        assert float(mean) == pytest.approx(row["activation"], abs=2e-4)
        picture = program.coloured(Image.new("RGB", (64, 64)), heat)
        assert picture.size == (64, 64)
        assert picture.getextrema() != ((0, 0), (0, 0), (0, 0)), "the strongest place has a colour"


def test_reports_are_drawn_in_proportion_to_the_classes() -> None:
    states = torch.zeros(100, 3, dtype=torch.long)
    states[:60, 0], states[60:90, 1], states[90:, 2] = 1, 1, 1
    chosen = draw_reports(states, 20, seed=0)
    assert len(set(chosen)) == 20
    counts = [sum(int(states[row, number] == 1) for row in chosen) for number in range(3)]
    assert counts == [12, 6, 2]
    assert chosen == draw_reports(states, 20, seed=0)
    assert chosen != draw_reports(states, 20, seed=1)
    assert draw_reports(states, 200, seed=0) == list(range(100))
    # Every study has both classes: the second finds none left, and the places are filled all the same.
    assert len(draw_reports(torch.ones(10, 2, dtype=torch.long), 7, seed=0)) == 7
    assert len(draw_reports(torch.zeros(10, 2, dtype=torch.long), 7, seed=0)) == 7
    # Two studies have a rare class and a frequent one. The rare one chooses first, so that no place is left over.
    states = torch.zeros(40, 2, dtype=torch.long)
    states[:18, 0] = states[:2, 1] = 1
    assert all(max(draw_reports(states, 10, seed)) < 18 for seed in range(20))


def test_the_report_memory_holds_sentences_or_whole_reports(toy_dataset: Dataset) -> None:
    view = training_view(toy_dataset)
    encoder = LsaTextEncoder(8, 256, 0)
    encoder.fit(view.reports)
    by_sentence = build_report_bank(view, encoder, ReportDrawConfig())
    assert {row["text"] for row in by_sentence.rows} == {
        "There is an opacity on the left",
        "The heart is normal",
        "There is an opacity on the right",
        "The heart is enlarged",
        "No effusion",
    }
    whole = build_report_bank(view, encoder, ReportDrawConfig(unit="report"))
    assert len(whole) == 2
    for bank in (by_sentence, whole):
        expected = encoder.encode([row["text"] for row in bank.rows])
        torch.testing.assert_close(bank.tensors["patterns"], expected)
    repeated = build_report_bank(view, encoder, ReportDrawConfig())
    assert torch.equal(repeated.tensors["patterns"], by_sentence.tensors["patterns"])
    assert report_sentences("Size 1.3 cm. No effusion.\n\nStable") == ["Size 1.3 cm", "No effusion", "Stable"]


def memory_of(bank: Bank, norm: OverStudies = "none") -> Any:
    torch.manual_seed(0)
    config = ReportMemoryConfig(num_heads=2, head_dim=4, update=AttentionRuleConfig(beta=1.0), norm=norm)
    memory = config.build(2, 6, 8, 10)
    memory.remember(bank)
    return memory


def toy_bank(count: int = 20) -> Bank:
    rows = tuple({"study_id": f"s{i}", "patient": patient_code(f"p{i % 5}"), "text": f"t{i}"} for i in range(count))
    return Bank({"patterns": torch.randn(count, 8, generator=torch.Generator().manual_seed(1)) * 3}, rows)


def test_a_study_recalls_the_largest_weights_and_never_its_own_patient() -> None:
    bank = toy_bank()
    memory = memory_of(bank)
    states = torch.randn(3, 2, 6)
    result = memory(states, ["p0", "p3", "a stranger"])
    assert result.tokens.shape == (3, 2, 10)
    recalled = memory.recalled(result, ("a", "b"), 3)
    network = memory.network
    query = network.query(network.state_norm(states)).view(3, 2, 2, 4)
    keys = network.key(torch.nn.functional.layer_norm(bank.tensors["patterns"], (8,))).view(20, 2, 4)
    scores = torch.einsum("bkhd,nhd->bkhn", query, keys)
    for study, patient in enumerate((0, 3, None)):
        own = [number for number in range(20) if number % 5 == patient]
        for number, name in enumerate(("a", "b")):
            shown = [item for item in recalled[study] if item["for"] == name]
            allowed = scores[study, number].clone()
            allowed[:, own] = -torch.inf
            weights, rows = allowed.softmax(-1).mean(0).topk(3)
            assert [item["study_id"] for item in shown] == [f"s{row}" for row in rows.tolist()]
            assert [item["weight"] for item in shown] == pytest.approx(weights.tolist(), rel=1e-4)
    # What reaches the language model does not hold the patient's own patterns either: they may be any.
    own = [number for number in range(20) if number % 5 == 0]
    patterns = bank.tensors["patterns"].clone()
    patterns[own] = torch.randn(len(own), 8, generator=torch.Generator().manual_seed(7))
    memory.remember(replace(bank, tensors={"patterns": patterns}))
    repeated = memory(states, ["p0", "p3", "a stranger"])
    torch.testing.assert_close(repeated.tokens[0], result.tokens[0])
    assert not torch.allclose(repeated.tokens[1], result.tokens[1])


def test_a_memory_normalises_what_asks_and_what_is_recalled_over_studies() -> None:
    plain, normalised = memory_of(toy_bank()), memory_of(toy_bank(), "studies")
    normalised.network.load_state_dict(plain.network.state_dict())
    # Disease tokens of which all studies share nearly everything.
    states = 5 * torch.randn(2, 6) + 0.1 * torch.randn(7, 2, 6)
    strangers = ["a stranger"] * 7
    centred = states - states.mean(0)
    asked = plain(centred / (centred.square().mean(0) + 1e-5).sqrt(), strangers).tokens
    recalled = asked - asked.mean(0)
    marks = normalised.output_norm.norm.bias.view(2, 10)
    wanted = recalled / (recalled.square().mean(0) + 1e-5).sqrt() + marks
    torch.testing.assert_close(normalised(states, strangers).tokens, wanted, rtol=1e-3, atol=1e-3)
    # The printed form has neither: what differs between studies is a small part of what is read.
    printed = plain(states, strangers).tokens.detach()
    assert float((printed - printed.mean(0)).square().sum() / printed.square().sum()) < 0.3
    assert [type(part) for part in (plain.state_norm, plain.output_norm)] == [torch.nn.Identity] * 2


def test_image_queries_are_normalised_over_studies_before_their_projection() -> None:
    record = PRESETS["tiny"]().model.model_copy(update={"query_norm": "studies"})
    projection = record.query_projection(32)
    queries = torch.randn(5, 14, 128)
    centred = queries - queries.mean(0)
    inner = centred / (centred.square().mean(0) + 1e-5).sqrt() + projection[0].norm.bias.view(14, 128)
    torch.testing.assert_close(projection(queries), projection[2](projection[1](inner)), rtol=1e-3, atol=1e-3)
    for name in ("paper", "paper-swin"):
        printed = PRESETS[name]()
        assert [type(part) for part in printed.model.query_projection(32)] == [torch.nn.Linear, torch.nn.LayerNorm]
        memories = printed.model.visual_memory, printed.model.report_memory
        assert [memory.norm for memory in memories] == ["none", "none"]
        assert (printed.stages.report.withheld, printed.stages.report.single_input) == ({}, 0)
    for name in ("tiny", "tiny-ct", "small"):
        model = PRESETS[name]().model
        norms = [one.norm for one in (model.visual_memory, model.report_memory) if hasattr(one, "norm")]
        assert {model.query_norm, *norms} == {"studies"}, name


def test_a_bank_is_read_as_it_is_and_an_empty_memory_recalls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopfield, "MAX_SCORES", 60)
    bank = toy_bank()
    memory = memory_of(bank)
    held, bank_patterns = memory.patterns.values, bank.tensors["patterns"]
    assert held.data_ptr() == bank_patterns.data_ptr(), "no copy, normalised or not"
    states = torch.randn(3, 2, 6, requires_grad=True)
    result = memory(states, ["p0", "p3", "a stranger"])
    # The same network over patterns that were normalised as a whole.
    whole = Patterns(torch.nn.functional.layer_norm(bank_patterns, (8,)), memory.patterns.owners)
    expected = memory.network(states.flatten(0, 1), whole, result.askers).output.view(3, 2, 10)
    torch.testing.assert_close(result.tokens, expected, rtol=1e-6, atol=1e-6)
    weight = torch.randn(3, 2, 10)
    parameters = [states, *memory.network.parameters()]
    actual, reference = (torch.autograd.grad((out * weight).sum(), parameters) for out in (result.tokens, expected))
    for left, right in zip(actual, reference, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    empty = memory_of(Bank({"patterns": torch.zeros(0, 1)}, ()))
    result = empty(torch.randn(2, 3, 6), ["a", "b"])
    assert torch.isfinite(result.tokens).all()
    assert empty.recalled(result, ("a", "b", "c"), 3) == [[], []]


def test_tokens_are_averaged_to_the_grid_that_the_decoder_reads() -> None:
    tokens = torch.rand(2, 3, 16, 5)
    views = ViewTokens(tokens, torch.ones(2, 3).bool(), torch.ones(2, 3).long(), (4, 4))
    small = pooled(views, 2)
    assert small.grid == (2, 2)
    torch.testing.assert_close(small.tokens[1, 2, 3], tokens[1, 2].view(4, 4, 5)[2:, 2:].mean((0, 1)))
    assert pooled(views, None) is views


def test_a_run_saves_its_banks_and_shows_recalled_cases(run: Run, run_folder: Path, toy_dataset: Dataset) -> None:
    train_ids = {study.study_id for study in toy_dataset.studies("train")}
    banks = {name: load_bank(run_folder / "memories" / name) for name in ("regions", "reports")}
    for bank in banks.values():
        assert len(bank) > 0
        assert set(bank.study_ids) <= train_ids
    report = Predictor.of(run).report([toy_dataset.image_path("images/0_0.png")])
    evidence = report.evidence
    assert set(evidence["class_probabilities"]) == set(run.card.classes)
    assert evidence["attention_maps"]
    for values in evidence["attention_maps"].values():
        shape = torch.tensor(values)
        assert shape.shape == (1, *run.model.vision_encoder(torch.zeros(1, 1, 32, 32)).grid)  # type: ignore[operator]
        assert (shape >= 0).all()
    kinds = {"region": 0, "sentence": 0}
    for item in evidence["recalled"]:
        kinds[item["kind"]] += 1
        assert item["study_id"] in train_ids
        assert item["for"] in run.card.classes
        assert 0 < item["scores"]["weight"] <= 1
        assert "patient" not in item
    # At most three of each kind per disease; the toy set has five sentences.
    assert 0 < kinds["region"] <= 3 * 14
    assert kinds["sentence"] == 3 * 14


def test_banks_wait_for_the_encoder_of_stage_one(run: Run, toy_dataset: Dataset) -> None:
    view = training_view(toy_dataset)
    assert run.model.build_memories("disease", view) == {}
    assert set(run.model.build_memories("report", view)) == {"regions", "reports"}


def toy_batch(views: int = 1, studies: int = 1) -> Any:
    examples = [
        Example(
            study_id=f"x{number}",
            patient_id=f"x{number}",
            source=torch.randint(0, 255, (2, 32, 32), dtype=torch.uint8).numpy(),
            rows=tuple(range(views)),
            view_ids=(1, 2)[:views],
        )
        for number in range(studies)
    ]
    return collate(examples, pad_id=0)


def test_the_language_model_reads_image_queries_and_both_memories(run: Run) -> None:
    model: AmMrgModel = run.model  # type: ignore[assignment]
    with torch.no_grad():
        _, mask = Forward(model, toy_batch(views=2)).prefix
    begin = 1
    assert mask.sum() == begin + 2 * 4 + 3 + 2 * 14


def test_recalled_cases_are_grouped_by_disease(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 8-9: F' = {(v_1, r_1), (v_2, r_2), ...}; a memory that is off leaves the other's tokens as they are."""
    model: AmMrgModel = run.model  # type: ignore[assignment]
    features = Forward(model, toy_batch())
    with torch.no_grad():
        prefix, mask = features.prefix
        recalled = prefix[0][mask[0]][-28:]
        for number in range(14):
            torch.testing.assert_close(recalled[2 * number], features.regions.tokens[0, number])
            torch.testing.assert_close(recalled[2 * number + 1], features.reports.tokens[0, number])
        monkeypatch.setattr(model, "visual_memory", NoMemory(model.language_model.width))
        alone = Forward(model, toy_batch())
        prefix, mask = alone.prefix
        torch.testing.assert_close(prefix[0][mask[0]][-14:], alone.reports.tokens[0])


def test_image_queries_reach_the_language_model(run: Run) -> None:
    model: AmMrgModel = run.model  # type: ignore[assignment]
    batch = toy_batch(views=2)
    with torch.no_grad():
        before, mask = Forward(model, batch).prefix
        next(reversed(list(model.query_projection.parameters()))).add_(1.0)
        after, _ = Forward(model, batch).prefix
    changed = ((before - after).abs().amax(-1) > 0.1) & mask
    assert changed.sum() == 3, "the three image queries, and nothing else"


@pytest.mark.parametrize("memory", ["visual_memory", "report_memory"])
def test_memory_content_changes_the_draft(run: Run, memory: str) -> None:
    model: AmMrgModel = run.model  # type: ignore[assignment]
    batch = toy_batch()
    with torch.no_grad():
        before, _ = Forward(model, batch).prefix
        part = getattr(model, memory)
        count, width = len(part.rows), part.pattern_dim
        part.remember(Bank({"patterns": torch.randn(count, width)}, part.rows))
        after, _ = Forward(model, batch).prefix
    assert not torch.allclose(before, after)


@pytest.mark.parametrize("memory", ["visual_memory", "report_memory"])
def test_a_model_recalls_nothing_of_another_study_of_the_same_patient(run: Run, memory: str) -> None:
    """The patient is excluded by its id: none of the bank's studies has the id of the study in the batch."""
    model: AmMrgModel = run.model  # type: ignore[assignment]
    batch = toy_batch(studies=2)
    batch.patient_ids = ("anna", "berta")
    part = getattr(model, memory)
    rows = tuple({**row, "patient": patient_code(("anna", "carla")[i % 2])} for i, row in enumerate(part.rows))
    part.remember(Bank({"patterns": torch.randn(len(rows), part.pattern_dim)}, rows))
    assert not {row["study_id"] for row in rows} & set(batch.study_ids)
    with torch.no_grad():
        forward = Forward(model, batch)
        recollection = {"visual_memory": forward.regions, "report_memory": forward.reports}[memory]
        recalled = part.recalled(recollection, model.classes, len(rows))
    of_anna, of_berta = ({item["patient"] for item in items} for items in recalled)
    assert of_anna == {patient_code("carla")}
    assert of_berta == {patient_code("anna"), patient_code("carla")}


def test_only_the_networks_and_projections_train_in_stage_two(run: Run, toy_dataset: Dataset) -> None:
    """Sec. III-E: the disease queries and the language model are fixed; in ``tiny`` only the former."""
    for preset, own in (("tiny", {"language_model"}), ("small", set()), ("paper", set())):
        experiment = resolve("am_mrg", preset, [])
        full = {part for part, how in experiment.stages.report.finetune.items() if how == "full"}
        assert full == {"visual_memory", "report_memory", "connector", "query_projection"} | own
    stage = resolve("am_mrg", "small", []).stages.report
    model: AmMrgModel = run.model  # type: ignore[assignment]
    apply_finetune(model, stage.finetune)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    batch = toy_batch()
    batch.input_ids = batch.labels = torch.arange(5, 17)[None]
    frozen = {name: value.clone() for name, value in model.language_model.state_dict().items()}
    losses = []
    for _ in range(12):
        loss = model.loss(batch, ("report",))["report"]
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1, "what stands in the prompt steers a frozen decoder"
    assert all(torch.equal(value, frozen[name]) for name, value in model.language_model.state_dict().items())


def test_the_decoder_learns_to_read_its_context_from_text_alone(run: Run) -> None:
    model: AmMrgModel = run.model  # type: ignore[assignment]
    batch = toy_batch()
    batch.pixel_values = batch.view_mask = batch.view_ids = None
    batch.input_ids = batch.labels = torch.arange(5, 17)[None]
    batch.class_labels = torch.zeros(1, 14, dtype=torch.long)
    model.eval()
    none = float(model.loss(batch, ("text_in_context",))["text_in_context"].detach())
    assert none == float(model.loss(batch, ("text_in_context",))["text_in_context"].detach()), "validation is steady"
    batch.class_labels = torch.ones(1, 14, dtype=torch.long)
    assert none != float(model.loss(batch, ("text_in_context",))["text_in_context"].detach()), "findings are told"


def test_a_planted_test_study_is_refused(toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = am_mrg.build_report_bank
    unknown_study = next(iter(toy_dataset.studies("test")))

    def planted(view: TrainingView, encoder: Any, config: ReportDrawConfig) -> Bank:
        bank = build(view, encoder, config)
        row = {**bank.rows[0], "study_id": unknown_study.study_id, "patient": patient_code(unknown_study.patient_id)}
        return Bank(bank.tensors, (row, *bank.rows[1:]))

    monkeypatch.setattr(am_mrg, "build_report_bank", planted)
    with pytest.raises(InputError, match="leak"):
        train("am_mrg", toy_dataset.path, tmp_path / "run", overrides=OVERRIDES)


def test_a_view_with_a_test_study_cannot_be_made(toy_dataset: Dataset) -> None:
    view = training_view(toy_dataset)
    unknown_study = next(iter(toy_dataset.studies("test")))
    with pytest.raises(AssertionError, match="training"):
        TrainingView(
            studies=(*view.studies[:-1], unknown_study),
            examples=view.examples,
            classes=view.classes,
            pad_id=0,
            seed=0,
        )


def test_two_builds_of_a_run_give_the_same_banks_and_another_seed_gives_others(
    run: Run, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: AmMrgModel = run.model  # type: ignore[assignment]
    view = training_view(toy_dataset)
    # So few that the seed has a choice.
    few = {
        "regions": model.sources.regions.model_copy(update={"regions_per_disease": 1}),
        "reports": model.sources.reports.model_copy(update={"num_reports": 4}),
    }
    monkeypatch.setattr(model, "sources", replace(model.sources, **few))
    first, second = (model.build_memories("report", view) for _ in range(2))
    other = model.build_memories("report", replace(view, seed=view.seed + 1))
    assert set(first) == {"regions", "reports"}
    for name in first:
        assert first[name].rows != other[name].rows, name
    for name in first:
        assert first[name].rows == second[name].rows
        assert torch.equal(first[name].tensors["patterns"], second[name].tensors["patterns"])
    assert model.build_memories("disease", view) == {}
