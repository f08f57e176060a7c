"""Which tokens the loss of the policy treats apart: a union, discriminated by `kind`; see `algos.token_rules`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentrl_jax.config.fields import TRACED, AboveZero, Finite, Section, Share
from agentrl_jax.errors import BadValue


class _TokenRule(Section):
    """What the learner needs to know of a rule."""

    reads: ClassVar[Literal["", "logprob", "entropy"]] = ""
    """What of a forward pass before the update it reads."""


class AllTokens(_TokenRule):
    """All sampled tokens are treated alike."""

    kind: Literal["all"] = "all"


class TopEntropy(_TokenRule):
    """Only tokens at which the policy was most uncertain are trained (Wang et al. 2025, arXiv 2506.01939).

    It takes a forward pass before the update. Denominators, entropy bonus and KL penalty are those of all tokens.
    """

    reads: ClassVar[Literal["", "logprob", "entropy"]] = "entropy"

    kind: Literal["top_entropy"] = "top_entropy"
    share: Annotated[float, Field(gt=0.0, lt=1.0), TRACED] = 0.2
    """Share of a minibatch's sampled tokens that are trained, those of largest entropy."""


class ClipCov(_TokenRule):
    """Some of the tokens that lower the entropy most have no gradient (Cui et al. 2025, arXiv 2505.22617, Clip-Cov).

    A token's covariance is the product of how far its log-probability and its advantage are from their means over the
    sampled tokens of a minibatch.
    """

    reads: ClassVar[Literal["", "logprob", "entropy"]] = "logprob"

    kind: Literal["clip_cov"] = "clip_cov"
    share: Annotated[Share, TRACED] = 2e-4
    """Share of a minibatch's sampled tokens without a gradient, chosen at random between the bounds; at least one."""
    low: Annotated[Finite, TRACED] = 1.0
    """Least covariance of such a token."""
    high: Annotated[Finite, TRACED] = 5.0
    """Largest covariance of such a token."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.low > self.high:
            raise BadValue.of("algo.tokens.low", self.low, f"expected at most algo.tokens.high = {self.high:g}")
        return self


class KlCov(_TokenRule):
    """The tokens that lower the entropy most pay for a change of their probability (Cui et al. 2025, KL-Cov).

    Covariances are those of clip_cov; the tokens with the largest ones are chosen.
    """

    reads: ClassVar[Literal["", "logprob", "entropy"]] = "logprob"

    kind: Literal["kl_cov"] = "kl_cov"
    share: Annotated[Share, TRACED] = 2e-4
    """Share of a minibatch's sampled tokens that pay; at least one."""
    coef: Annotated[AboveZero, TRACED] = 1.0
    """Weight of the distance between the logarithms of a token's probability now and before the update."""


TokenRule = Annotated[AllTokens | TopEntropy | ClipCov | KlCov, Field(discriminator="kind")]
