"""A seventh method: the mean of an image's tokens is one word before the report. All that a new method takes."""

from dataclasses import dataclass

from radweave.methods.experiment import BuildContext, Experiment, ModelConfig, ReportStages, stage, warm
from radweave.methods.model import ForwardPass, ReportModel, Term, losses, report_loss, written
from radweave.nn.connector import Connector, ConnectorConfig, LinearConnectorConfig
from radweave.nn.language_model import CausalLanguageModel, LanguageModelConfig, LlamaConfig
from radweave.nn.prompt import PromptTemplate, Slot, all_there
from radweave.nn.vision import ResNetConfig, VisionEncoderConfig, VisionPart

PARTS = dict.fromkeys(("vision_encoder", "connector", "language_model"), "full")


class Forward(ForwardPass["SeventhModel"]):
    @property
    def prefix(self) -> Slot:
        word = self.model.connector(self.views.mean()[:, None], self.views.view_ids[:, 0])
        return self.spliced(self.model.prompt, {"image": all_there(word)})


@dataclass(eq=False, repr=False)
class SeventhModel(ReportModel):
    vision_encoder: VisionPart
    connector: Connector
    language_model: CausalLanguageModel
    prompt: PromptTemplate
    terms = {"report": Term(tuple(PARTS), report_loss)}  # noqa: RUF012

    def loss(self, batch, terms):
        return losses(self.terms, Forward(self, batch), terms)

    def generate(self, batch, decoding):
        return written(*self.language_model.generate(*Forward(self, batch).prefix, decoding))


class SeventhConfig(ModelConfig):
    vision_encoder: VisionEncoderConfig = ResNetConfig(embedding_size=8, hidden_sizes=(8, 16), depths=(1, 1))
    connector: ConnectorConfig = LinearConnectorConfig()
    language_model: LanguageModelConfig = LlamaConfig(hidden_size=32, num_layers=2)

    def build(self, context: BuildContext) -> SeventhModel:
        encoder = context.vision_encoder(self.vision_encoder)
        words = context.part("language_model", lambda: self.language_model.build(**context.words))
        connector = context.part("connector", lambda: self.connector.build(encoder.dim, words.width))
        return SeventhModel(encoder, connector, words, context.prompt("{image}", "plain", "image"))


class SeventhExperiment(Experiment):
    method: str = "seventh"
    model: SeventhConfig = SeventhConfig()
    stages: ReportStages = ReportStages(report=stage(PARTS, {"report": 1.0}, warm(1e-3, 2), epochs=2))


PRESETS = dict.fromkeys(("tiny", "small", "paper"), SeventhExperiment)
ABLATIONS, TABLES = {"full": [], "MLP connector": ["model.connector=mlp"]}, {}
