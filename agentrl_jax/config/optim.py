"""Optimizers of a run: a union, discriminated by `kind`; their functions are in `algos.optimizers`."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Tag

from agentrl_jax.config.fields import (
    BY_KIND,
    LARGEST,
    OWN,
    TRACED,
    AboveZero,
    Count,
    Decay,
    Fraction,
    NonNegative,
    Section,
    Text,
)
from agentrl_jax.config.own import OwnKind


class Constant(Section):
    """Learning rates stay as they are after the warmup."""

    kind: Literal["constant"] = "constant"


class _Falling(Section):
    """Fields of learning rates that fall after the warmup."""

    end_factor: Fraction = 0.0
    """What is left of the learning rates at the end, which is one iteration after the last."""
    iterations: Count = 0
    """Iterations until then; afterwards they stay. 0: train.iterations."""


class Linear(_Falling):
    """Learning rates fall at constant speed."""

    kind: Literal["linear"] = "linear"


class Cosine(_Falling):
    """Learning rates fall as half a cosine."""

    kind: Literal["cosine"] = "cosine"


class Wsd(_Falling):
    """Learning rates stay, and fall at constant speed at the end (warmup, stable, decay; Hu et al. 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Share of the iterations in which they fall."""


Schedule = Annotated[Constant | Linear | Cosine | Wsd, Field(discriminator="kind")]


class ParameterGroup(Section):
    """Parameters that are trained with other numbers."""

    match: Text
    """Names of parameters in policy and critic, with * for any text: embedding, layers/*norm, layers/query/*."""
    lr_factor: Annotated[float, Field(ge=0.0, le=LARGEST, allow_inf_nan=False)] = 1.0
    """Factor on the learning rate; 0: the parameters are frozen, and do not count in the norm of the gradient."""
    weight_decay: NonNegative | None = None
    """Weight decay of all of them, norms and biases too; none: that of optim."""


class _Optim(Section):
    """Fields of all optimizers, and what others need to know of them."""

    lr_factor: ClassVar[float] = 1.0
    """Default learning rates are those of adamw times this."""
    whole: ClassVar[tuple[str, ...]] = ()
    """Mesh axes that matrices may not be divided over, because the optimizer needs whole ones."""

    lr: Annotated[NonNegative | None, TRACED] = None
    """Learning rate of the policy; none: 3e-4 for a decoder from scratch, 1e-5 for adapters, 1e-6 for a pretrained
    model; a fifth of it for lion, 100 times for sgd."""
    critic_lr: Annotated[NonNegative | None, TRACED] = None
    """Learning rate of the critic (of a shared critic's value head); none: 1e-3, 1e-4 or 1e-5 in the same cases."""
    warmup: Count = 0
    """Iterations over which the learning rates rise from 0."""
    warmup_share: Fraction = 0.0
    """The same as a share of train.iterations, rounded; instead of warmup."""
    schedule: Schedule = Constant()
    """Learning rates after the warmup."""
    max_grad_norm: Annotated[AboveZero, TRACED] = 1.0
    """The gradients of policy and critic are each clipped to this global norm."""
    average_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the policy in a moving average of it, after each gradient step of reinforcement learning. Validations,
    train.best, the evaluation at the end and all that reads a checkpoint of the run then use the average; rollouts and
    updates use the policy. 0: no average."""
    offload: bool = False
    """Keep the optimizer's state in the memory of the hosts; every step moves it to the devices and back, which saves 8
    bytes a trained parameter on the devices (adamw) and takes time."""
    groups: tuple[ParameterGroup, ...] = ()
    """Parameters with other numbers; the first entry that matches a name counts."""

    def of_program(self) -> Self:
        """A copy with what programs are compiled for: without rates, their schedule, and where the state is."""
        elsewhere = "warmup", "warmup_share", "schedule", "offload", "average_rate"
        usual = {name: _Optim.model_fields[name].default for name in elsewhere}
        return self.untraced().replace(**usual)


class _Decaying(_Optim):
    """Fields of optimizers whose weight decay is ours."""

    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""
    decay: Literal["matrices", "all"] = "matrices"
    """Which parameters decay. matrices: all except norm scales and biases; all: these too, as in verl."""


class AdamW(_Decaying):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    b1: Decay = 0.9
    """Decay of Adam's first moment."""
    b2: Decay = 0.999
    """Decay of Adam's second moment."""


class Lion(_Decaying):
    """Signs of a momentum (Chen et al. 2023): one moment, and rates 3 to 10 times lower than those of adamw."""

    lr_factor: ClassVar[float] = 0.2

    kind: Literal["lion"] = "lion"
    b1: Decay = 0.9
    """Decay of the momentum in a step."""
    b2: Decay = 0.99
    """Decay of the momentum that is kept."""


class Adafactor(_Decaying):
    """Second moments by row and column of each layer's matrix (Shazeer and Stern 2018), without relative steps."""

    whole: ClassVar[tuple[str, ...]] = ("fsdp", "tensor")

    kind: Literal["adafactor"] = "adafactor"
    decay_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Exponent of the growing decay of the second moment."""
    clip_rms: AboveZero = 1.0
    """Largest root mean square of a step of one layer's matrix, in units of the learning rate."""
    min_dim: Annotated[int, Field(ge=1, le=2**20)] = 128
    """Matrices with a smaller side keep their whole second moment."""


class Sgd(_Decaying):
    """Gradient descent with momentum."""

    lr_factor: ClassVar[float] = 100.0

    kind: Literal["sgd"] = "sgd"
    momentum: Decay = 0.9
    """Decay of the momentum; 0: none, and no state."""


class Muon(_Decaying):
    """Orthogonalized momentum for the matrices of the layers, adamw for all else (Jordan et al. 2024).

    Steps have the size of adamw's: 0.2 sqrt(largest side) (Liu et al. 2025, arXiv 2502.16982).
    """

    whole: ClassVar[tuple[str, ...]] = ("fsdp",)

    kind: Literal["muon"] = "muon"
    momentum: Decay = 0.95
    """Decay of the momentum."""
    nesterov: bool = True
    """Look ahead by one step of the momentum."""
    ns_steps: Annotated[int, Field(ge=1, le=32)] = 5
    """Newton-Schulz steps of the orthogonalization."""
    b1: Decay = 0.9
    """Decay of the first moment of adamw."""
    b2: Decay = 0.999
    """Decay of the second moment of adamw."""


class OwnOptimizer(OwnKind, _Optim):
    """An optimizer of the user. Its parameters are static; it has weight decay where it adds it."""

    whole: ClassVar[tuple[str, ...]] = ("fsdp", "tensor")

    def traced(self) -> dict[str, float]:
        """As in `Section`, without the parameters of the function."""
        return Section.traced(self)

    def untraced(self) -> Self:
        """As in `Section`."""
        return Section.untraced(self)

    def __hash__(self) -> int:
        return hash((super().__hash__(), *sorted(self.numbers.items())))


Optim = Annotated[
    Annotated[AdamW, Tag("adamw")]
    | Annotated[Lion, Tag("lion")]
    | Annotated[Adafactor, Tag("adafactor")]
    | Annotated[Sgd, Tag("sgd")]
    | Annotated[Muon, Tag("muon")]
    | Annotated[OwnOptimizer, Tag(OWN)],
    BY_KIND,
]


def with_optimizer(data: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose optimizer is adamw where it has no kind; kinds may stand alone, without their keys."""
    optim = data.get("optim", {})
    optim = {"kind": optim} if isinstance(optim, str) else optim
    if not isinstance(optim, dict):
        return data
    schedule = optim.get("schedule")
    given = {"schedule": {"kind": schedule}} if isinstance(schedule, str) else {}
    return {**data, "optim": {"kind": "adamw", **optim, **given}}
