"""The stages of a run, as its file lists them: a union, discriminated by `kind`."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from agentrl_jax.config.fields import AboveZero, Count, Decay, Fraction, NonNegative, Positive, Section, Size, Text
from agentrl_jax.config.imitation import IMITATION_CHUNK


class ImitationStage(Section):
    """Demonstrations of the tasks, as the section `imitation` says."""

    kind: Literal["imitation"] = "imitation"


class RlStage(Section):
    """Reinforcement learning, as the sections `algo`, `optim` and `train` say."""

    kind: Literal["rl"] = "rl"


class DataStage(Section):
    """What all stages share that learn from a data set."""

    slower: ClassVar[int] = 1
    """By this the usual learning rate is divided."""
    data: tuple[Text, ...] = ()
    """Data sets, read one after the other: files and folders as `agentrl data show` reads them."""
    split: str = ""
    """Part of a TFDS folder, such as train or train[:80%]; empty: all of it."""
    sha256: str = ""
    """Digest of the data, as `agentrl data show` prints it; other data are refused. Empty: that of the data at the
    start of the run, which keeps it."""
    epochs: Positive = 1
    """Times that every row is learned from, each time in another order."""
    steps: Count = 0
    """Gradient steps; 0: as many as the epochs have. Further steps are those of further epochs."""
    batch: Positive = 32
    """Rows of a gradient step, or pairs; all of them if there are fewer. The last step of an epoch takes its missing
    rows from the next epoch, and the last step of all has the rows that are left."""
    lr: NonNegative | None = None
    """Learning rate; none: 3e-4 for a decoder from scratch, 1e-4 for adapters, 1e-5 for a pretrained model; for pairs a
    tenth of it."""
    warmup: Fraction = 0.1
    """Share of the steps in which the learning rate rises from 0."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """The learning rate after the warmup; linear and cosine reach 0 one step after the last."""
    max_tokens: Size = 2048
    """Longest row. A conversation is cut there; where that is within a reply, it is left out and counted."""
    validation: Decay = 0.0
    """Share of the conversations, by content, that are not learned from: their loss is measured before and after."""

    @property
    def total(self) -> int:
        """Number of gradient steps of the stage; 0 where it is not known yet."""
        return self.steps

    @property
    def chunks(self) -> int:
        """Number of dispatches, each a row of metrics.jsonl; 0 where the number of steps is not known yet."""
        return -(-self.steps // IMITATION_CHUNK)

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        assert self.lr is not None, "filled in with the defaults"
        rising = round(self.warmup * self.steps)
        if step < rising:
            return self.lr * (step + 1) / rising
        left = 1 - (step - rising) / max(self.steps - rising, 1)
        shape = {"constant": 1.0, "linear": left, "cosine": (1 + math.cos(math.pi * (1 - left))) / 2}
        return self.lr * shape[self.schedule]


class SftStage(DataStage):
    """Supervised learning from conversations: cross-entropy on replies."""

    kind: Literal["sft"] = "sft"
    compat: Literal["none", "agentgym"] = "none"
    """agentgym: as AgentGym's released code, replies are trained whatever their `loss` says, the acknowledgement of the
    manual too."""


class DpoStage(DataStage):
    """Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290) from pairs of answers to one prompt,
    which are not packed."""

    kind: Literal["dpo"] = "dpo"
    slower: ClassVar[int] = 10
    beta: AboveZero = 0.1
    """Strength of the pull to the policy at the start of the stage."""
    loss: Literal["sigmoid", "hinge", "ipo", "none"] = "sigmoid"
    """Of the margin: -log sigmoid(beta margin); max(0, 1 - beta margin) (SLiC, arXiv 2305.10425); (margin - 1 / (2
    beta))^2 (arXiv 2310.12036); none: nll_coef alone, as a control on the same pairs."""
    per_token: bool = False
    """Log-probabilities are means over the trained tokens of an answer, not sums; with ipo too."""
    levels: Count = 0
    """Instead of data: training levels of each task that the policy plays before the stage. A pair is the start of a
    shortest plan in a situation, and what was sampled there, where that is worse. For compiled environments whose
    planner starts in every situation: BabyAI and Sokoban."""
    nll_coef: NonNegative = 0.0
    """Weight of the mean cross-entropy of the chosen answers (arXiv 2404.19733)."""


class EvolveStage(DataStage):
    """AgentEvol (Xi et al. 2024, arXiv 2406.04151): rounds in which the policy explores training levels and learns from
    its successes. The base data are those of `data` and the demonstrations of `imitation.levels`; before the first
    round the policy learns from them alone. `steps` are those of each round."""

    kind: Literal["evolve"] = "evolve"
    rounds: Size = 4
    """Rounds of exploration."""
    levels: Positive = 256
    """Training levels of each task that a round explores."""
    new_levels: bool = True
    """Every round explores other levels; false: the same ones."""
    samples: Size = 1
    """Episodes on each level of a round."""
    per_level: Size = 1
    """Most successful episodes of a level that a round learns from."""
    temperature: AboveZero = 1.0
    """Sampling temperature of exploration."""
    restart: bool = True
    """Each round begins with the policy from before the stage, as AgentEvol does; false: it goes on with the one that
    explored."""

    @property
    def total(self) -> int:
        """See `DataStage.total`."""
        return (self.rounds + 1) * self.steps

    @property
    def chunks(self) -> int:
        """See `DataStage.chunks`."""
        return (self.rounds + 1) * super().chunks


Stage = Annotated[ImitationStage | SftStage | DpoStage | EvolveStage | RlStage, Field(discriminator="kind")]
