"""The fields of a run's configuration: one tree of frozen sections.

The string below each field is its help text in `agentrl train --help`. The learning rule is in `algo`, the
optimizer in `optim`, the decoder in `model`, and imitation in `imitation`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl_jax.config.advantages import Sum
from agentrl_jax.config.agents import Agent, FullContext
from agentrl_jax.config.algo import AlgoConfig, UpdateRule
from agentrl_jax.config.fields import (
    AboveZero,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Section,
    Seed,
    Share,
    Size,
    Text,
)
from agentrl_jax.config.imitation import ImitationConfig
from agentrl_jax.config.model import ModelConfig
from agentrl_jax.config.optim import AdamW, Optim
from agentrl_jax.config.own import Metrics, OwnKind
from agentrl_jax.config.stages import DataStage, Stage
from agentrl_jax.config.tasks import TaskConfig
from agentrl_jax.environments.kinds import Kind, kind_of


class PromptConfig(Section):
    """Format of prompts and responses."""

    style: Literal["compact", "ragen", "chat", "bare"] = "compact"
    """compact: as few tokens as possible; ragen: the parts and order of RAGEN's prompt. For services, whose responses
    are text after `Action:`: chat puts the task into a system message; bare shows only the service's text."""
    encoder: Literal["pieces", "canonical"] = "pieces"
    """pieces: every piece of a state is tokenized separately; canonical: the whole text is tokenized as the tokenizer
    does it, as in the model's other training text."""
    think: bool = False
    """Ask for a think block before the answer block. Passed as enable_thinking to chat templates that read it, such as
    Qwen3's: with false they open each response with an empty think block, which is inserted, not sampled."""
    forced_tag: bool = True
    """Insert the opening tag of the response instead of leaving it to the model."""
    stop_at_answer: bool = False
    """End a turn when the answer tag closes; otherwise the model must sample the end of the turn."""
    separator: Text = "||"
    """Text between two actions of one answer."""
    max_turns: Size = 5
    """Maximum turns of an episode."""
    max_actions_per_turn: Size = 5
    """Actions executed per turn; further ones are ignored without penalty."""
    max_actions: Size = 10
    """Action budget of an episode."""
    max_response_tokens: Annotated[int, Field(ge=2, le=2**20)] = 16
    """Maximum tokens of the response of one turn, the end-of-turn token included."""
    observation_tokens: Count = 0
    """Maximum tokens of a message of a compiled environment, with the text around the observation; longer ones are cut,
    and counted (train/overflow). 0: the most that the environment can say. For services see env.observation_tokens."""
    format_penalty: Annotated[float, Field(le=0.0, allow_inf_nan=False)] = -0.1
    """Added to the return for every turn whose response breaks the format or names an unknown action."""

    @property
    def has_answer_block(self) -> bool:
        """Whether responses have their actions in an answer block; otherwise they are plain text."""
        return self.style not in ("chat", "bare")

    @property
    def thinks(self) -> bool:
        """Whether chat templates that have think blocks write them; in plain text, thoughts are text too."""
        return self.think and self.has_answer_block


class ServiceConfig(Section):
    """Connection to environment services and scoring of their episodes, if tasks name services, and the workers of
    Python environments."""

    url: str = ""
    """Address of a running server, e.g. http://127.0.0.1:8000, ours or AgentGym's; with it every task is a service,
    compiled environments too. local: in this process, without HTTP. Empty: the run starts and stops a server for each
    task."""
    token_file: str = ""
    """File with the token that the server at `url` requires. A server that the run starts gets a random token."""
    score: Literal["auto", "sum", "last", "max"] = "auto"
    """Return of an episode: the sum of its rewards, its last score (as in AgentGym), or its maximum score. auto: max
    where scores are of the whole episode, last where rewards are (the best one so far), else sum."""
    progress: NonNegative = 0.0
    """Weight of an episode's progress (0 to 1) that is added to the return in training; for services that report it
    (textcraft). Failed episodes keep it, so it is not potential-based shaping: use less than 1, the reward of
    success."""
    observation_tokens: Size = 256
    """Maximum tokens of an observation; longer ones are cut, and counted (train/overflow)."""
    deadline: AboveZero = 60.0
    """Seconds that all environments together may take for a turn; late environments fail."""
    workers: Size = 64
    """Environments that are called at once."""
    processes: Count = 0
    """Processes that Python environments run in, one call at a time in each; for those that compute. 0: each has a
    thread of this process, for those that wait."""
    retries: Count = 3
    """Instances that an episode may lose in a turn; each time its past turns are replayed on a fresh instance."""
    max_failed: Fraction = 0.25
    """The run stops if the share of failed episodes in an iteration is above this."""


class RolloutConfig(Section):
    """How trajectories are sampled."""

    group_size: Size = 16
    """Episodes per group."""
    temperature: NonNegative = 1.0
    """Sampling temperature in training; 0 is greedy."""
    slots: Count = 0
    """Episodes that run at once; 0: all. With fewer slots than episodes, a free slot starts the next episode."""
    prefill_threshold: Share = 1.0
    """Share of active rows that must wait before their observations are prefilled; 1: a barrier after every turn."""
    prefill_chunk: Count = 0
    """Observations are prefilled in chunks of this many tokens, until the longest is read; 0: the full width at once.
    Use it for environments whose observations differ much in length."""
    prefill_rows: Count = 0
    """Observations after the first are prefilled for this many rows at a time, the longest first; 0: all at once. Use
    it with prefill_chunk, or with a prefill_threshold below 1. Rows of a group then store their first observation
    each."""
    context_tokens: Count = 0
    """Maximum tokens of a context; an episode whose next turn might need more is truncated. 0: no limit."""
    shared_noise: bool = False
    """Members of a group also get the same random environment transitions."""
    quantization: Literal["none", "weights", "weights_and_cache"] = "none"
    """Play training episodes with 8-bit integers, which take a half or a quarter of the memory. weights: matrices and
    embedding, one scale for each output; weights_and_cache: keys and values too, one scale for each position and head.
    The rollout's policy then differs a little from the learner's; `algo.mismatch` tis or icepop weigh it. Validation
    and evaluation are not quantized."""


class BestConfig(Section):
    """Which checkpoint is the best one."""

    metric: Text = "validation/success"
    """Name in metrics.jsonl, read in iterations with a validation."""
    mode: Literal["max", "min"] = "max"
    """Whether higher or lower values are better."""
    evaluate: bool = False
    """Play it at the end on the levels of the evaluation too, which did not choose it: `best` in summary.json."""


class StopConfig(Section):
    """The end of reinforcement learning before train.iterations, by validations."""

    at: Share | None = None
    """Success in validation that ends the run once it is sure: when its one-sided lower bound (Clopper and Pearson) is
    at least this in the k-th validation, at the level alpha / (k (k + 1)). none: it goes on."""
    alpha: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    """Probability of ending by chance, over all validations together."""
    patience: Count = 0
    """Validations without a better value of train.best after which the run ends; 0: it goes on."""


class TrainConfig(Section):
    """Length of the run, checkpoints, validation and logs."""

    iterations: Count = 200
    """Iterations of rollout and update."""
    critic_warmup: Count = 0
    """Number of first iterations in which only the critic is trained; the policy and its optimizer state do not change.
    (verl's trainer.critic_warmup counts from 1, so N there is N - 1 here.)"""
    checkpoint_every: Positive = 10
    """Iterations, or chunks of 25 steps of imitation, between two checkpoints; the last iteration, and one with a
    better validation than all before, are saved too."""
    best: BestConfig = BestConfig()
    """Which checkpoint is the best one, which is kept, and which commands call best."""
    stop: StopConfig = StopConfig()
    """When the run ends before train.iterations, by its validations."""
    keep: Positive = 2
    """Number of newest checkpoints that are kept, beside the best one, see train.best."""
    keep_every: Count = 0
    """Checkpoints of every so many iterations are kept for good, a multiple of checkpoint_every; 0: none."""
    validate_every: Count = 10
    """Iterations between two validations on fixed levels; 0: none."""
    validation_episodes: Positive = 128
    """Number of levels of each task in a validation, all different; fewer where there are not so many."""
    validation_temperature: NonNegative = 0.5
    """Sampling temperature of the validation."""
    max_bad_updates: Positive = 5
    """The run stops after this many skipped updates in a row (not finite, or without a token to learn from)."""
    on_collapse: Literal["go_on", "stop", "roll_back"] = "go_on"
    """What to do when an alarm reports a collapse of training (`agentrl_jax.algos.collapse` lists the alarms, which are
    always written to metrics.jsonl and the terminal). roll_back: continue from the last checkpoint before the collapse,
    with lower learning rates and other random numbers; discarded iterations stay in roll_backs/."""
    roll_back_factor: Share = 0.5
    """Factor on the learning rates at each roll-back."""
    max_roll_backs: Count = 3
    """Maximum roll-backs after which training continues; the next one ends the run at that checkpoint."""
    mutual_information_every: Count = 0
    """Iterations between two measurements of the mutual information of responses and prompts, which falls when
    responses depend less on the prompt, and of the distance from the policy at the start of learning; the first
    iteration is always measured; 0: none."""
    mutual_information_pairs: Annotated[int, Field(ge=2, le=2**16)] = 64
    """Maximum responses of a measurement; each is scored under the prompts of all of them."""
    metrics: Metrics = Field(default_factory=dict)
    """Your functions of the episodes of an iteration, by name: with short: my_rules:short, rows have own/short. Numbers
    of a function are keys beside its kind."""
    trajectories_every: Count = 10
    """Iterations between two that are recorded, as text in trajectories.jsonl and token by token in rollouts/, which
    `agentrl view` reads; the last one is recorded too; 0: none."""
    trajectories: Positive = 32
    """Episodes recorded each time, the first ones of the batch; at most all."""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    """Where the rows of metrics.jsonl go besides. wandb: Weights & Biases, project and mode as the variables
    WANDB_PROJECT and WANDB_MODE say."""
    recorded_mb: Positive = 1024
    """Megabytes that rollouts/ may have; beyond that, the oldest iterations are deleted."""


class EvalConfig(Section):
    """The held-out evaluation at the end of a run and in `agentrl eval`."""

    episodes: Positive = 512
    """Number of held-out levels of each task, all different; fewer where there are not so many."""
    temperature: AboveZero = 1.0
    """Sampling temperature of the evaluation; a greedy evaluation is always run too."""
    seed: Seed = 123
    """Seed of the held-out levels and of sampling."""


class StartConfig(Section):
    """The run whose policy a new run starts from, in place of a fresh or a pretrained one."""

    run: str = ""
    """Folder of that run, which has a model of the same shape; empty: none. `agentrl train FILE --from RUN` sets it.
    The levels that it learned from count as learned from in this run too."""
    checkpoint: str = "last"
    """last, best (the highest success in validation) or the step of a checkpoint; --checkpoint sets it."""
    optimizer: bool = False
    """Also start from its critic and the state of its optimizer; otherwise both are new."""


class MeshConfig(Section):
    """How the devices of a run share parameters; see `parallel.layout`."""

    fsdp: Positive = 1
    """Devices that share parameters, optimizer state and rows while learning."""
    sequence: Positive = 1
    """Devices that share the positions of the same rows while learning, for long contexts; in a rollout each plays
    different episodes."""
    tensor: Positive = 1
    """Devices that share each matrix and its heads."""
    rollout: Literal["rows", "wide"] = "rows"
    """Use of the fsdp devices in a rollout. rows: each plays different episodes; wide: they share each matrix too."""

    def axes(self) -> dict[str, int]:
        """Sizes of the mesh axes that are set here, by name."""
        return {"fsdp": self.fsdp, "sequence": self.sequence, "tensor": self.tensor}


class HostsConfig(Section):
    """The processes of a run on several hosts, one process per host. They differ in `index` only."""

    coordinator: str = ""
    """Address of process 0 as HOST:PORT; auto: JAX detects all three keys (SLURM, Open MPI, GKE, TPU VMs); empty: the
    run is one process."""
    count: Count = 0
    """Number of processes."""
    index: Count | None = None
    """Number of this process, from 0."""


class Config(Section):
    """The whole configuration of a run."""

    seed: Seed = 0
    """Seed of parameters, levels, sampling and the order of minibatches."""
    run_dir: str = ""
    """Folder of the run; empty: runs/<name of the YAML file>."""
    devices: Count | Literal["auto"] = 1
    """Devices of the run, on all hosts together; 0: all available ones, which a run on several hosts always uses; auto:
    all accelerators, or two devices of the CPU where there is none, and the run keeps their number. Devices beyond
    mesh.fsdp * mesh.sequence * mesh.tensor are data-parallel replicas. A machine without accelerators simulates several
    devices on its CPU."""
    mesh: MeshConfig = MeshConfig()
    hosts: HostsConfig = HostsConfig()
    tasks: tuple[TaskConfig, ...] = (TaskConfig(env="SimpleSokoban", groups=8),)
    """Tasks of the batch, each with its groups and its metrics. None, []: nothing is played, and stages learn from data
    alone."""
    env: ServiceConfig = ServiceConfig()
    prompt: PromptConfig = PromptConfig()
    model: ModelConfig = ModelConfig()
    start: StartConfig = StartConfig()
    agent: Agent = FullContext()
    rollout: RolloutConfig = RolloutConfig()
    algo: AlgoConfig = AlgoConfig()
    optim: Optim = AdamW()
    """Optimizer of the run, and its learning rates in reinforcement learning."""
    imitation: ImitationConfig = ImitationConfig()
    stages: tuple[Stage, ...] = ()
    """What the run walks through, in this order; rl is the last, or left out. Empty: imitation, where
    imitation.levels is above 0, and rl. Each is a kind, or keys: [{kind: sft, data: [FILE]}, imitation, rl]."""
    train: TrainConfig = TrainConfig()
    evaluation: EvalConfig = EvalConfig()

    @property
    def device_count(self) -> int:
        """Number of devices; 0 where it is not known yet."""
        return 0 if self.devices == "auto" else self.devices

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kind of each task's environment."""
        return tuple(kind_of(task.env, self.env.url) for task in self.tasks)

    @property
    def on_host(self) -> bool:
        """Whether some tasks run on the host."""
        return any(kind.on_host for kind in self.kinds)

    @property
    def data_stages(self) -> tuple[DataStage, ...]:
        """The stages that learn from data, in their order."""
        return tuple(stage for stage in self.stages if isinstance(stage, DataStage))

    @property
    def rows_before_rl(self) -> int:
        """Rows of metrics.jsonl that come before those of reinforcement learning."""
        return self.imitation.chunks + sum(stage.chunks for stage in self.data_stages)

    @property
    def turns(self) -> tuple[int, ...]:
        """Most turns of each task's episodes."""
        return tuple(task.max_turns or self.prompt.max_turns for task in self.tasks)

    @property
    def groups(self) -> int:
        """Number of groups of a batch."""
        return sum(task.groups for task in self.tasks)

    @property
    def own_kinds(self) -> dict[str, OwnKind]:
        """The sections that are functions of the user, by their keys."""
        found = {f"algo.{name}": getattr(self.algo, name) for name in UpdateRule.model_fields} | {"optim": self.optim}
        if isinstance(self.algo.advantage, Sum):
            found |= {f"algo.advantage.{index}": rule for index, rule in enumerate(self.algo.advantage.rules)}
        found |= {f"algo.rewards.{name}": part for name, part in self.algo.rewards.items()}
        found |= {f"train.metrics.{name}": part for name, part in self.train.metrics.items()}
        return {key: part for key, part in found.items() if isinstance(part, OwnKind)}

    @property
    def has_new_kinds(self) -> bool:
        """Whether some of these have not been imported yet."""
        return not all(part.source for part in self.own_kinds.values())

    def with_kinds(self, found: Mapping[str, OwnKind]) -> "Config":
        """The configuration with other sections at keys as in `own_kinds`."""
        data: dict[str, Any] = {"algo": {}, "algo.rewards": {}, "train.metrics": {}, "algo.advantage": {}}
        for key, part in found.items():
            section, _, name = key.rpartition(".")
            data.setdefault(section, {})[name] = part
        algo = self.algo.replace(**data["algo"], rewards=self.algo.rewards | data["algo.rewards"])
        if isinstance(self.algo.advantage, Sum):
            algo = algo.replace(advantage=self.algo.advantage.with_rules(data["algo.advantage"]))
        train = self.train.replace(metrics=self.train.metrics | data["train.metrics"])
        return self.replace(algo=algo, train=train, optim=found.get("optim", self.optim))

    def schedule_starts(self) -> dict[str, float]:
        """Initial value of everything that `algo.schedules` can change in this run, by its key there."""
        outside = {"rollout.temperature": self.rollout.temperature, "prompt.format_penalty": self.prompt.format_penalty}
        return {**outside, "entropy_coef": self.algo.entropy_coef, **self.algo.traced_keys()}
