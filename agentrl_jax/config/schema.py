"""The fields of a run's configuration: one tree of frozen sections.

Every field carries its explanation below it, which `agentrl train --help` shows. The learning rule is in `algo`.
"""

from typing import Annotated, Literal, get_args

from pydantic import Field

from agentrl_jax.config.algo import AlgoConfig
from agentrl_jax.config.fields import AboveZero, Count, Decay, NonNegative, Positive, Section, Seed, Share, Size
from agentrl_jax.service_names import TEXT_SERVICES


class TaskConfig(Section):
    """One task of the batch: an environment and how many groups play it."""

    env: Annotated[str, Field(min_length=1)]
    """Registry tag of the environment, e.g. SimpleSokoban; `agentrl envs` lists them. Or a service: textcraft,
    sciworld, maze, wordle."""
    groups: Size
    """Groups per batch; every member of a group plays the same level."""
    name: str = ""
    """Name of the task in metrics; empty: the environment's tag."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Options passed to envs_jax.make with the tag; one of them by --tasks.0.options.NAME VALUE."""
    items: str = ""
    """Items of a service to train on: numbers such as 0-399,450, or an item file in AgentGym's layout."""
    held_out: str = ""
    """Items of a service for the evaluation at the ends of a run, likewise."""
    validation: str = ""
    """Items of a service for validations during a run, likewise; none of `items` or `held_out`."""
    levels: str = ""
    """Level pack (.npy, int8[N,H,W]) or text levels, to draw from and to evaluate on; empty: the generator's levels."""

    @property
    def label(self) -> str:
        """The task's name in metrics."""
        return self.name or self.env


class PromptConfig(Section):
    """What a turn looks like and what a response may hold."""

    style: Literal["compact", "ragen", "chat", "bare"] = "compact"
    """compact: as few tokens as possible; ragen: the parts and the order of RAGEN's prompt. For services, whose
    responses are words behind `Action:`: chat tells the task as a system message; bare shows what the service says
    alone."""
    encoder: Literal["pieces", "canonical"] = "pieces"
    """pieces: every piece of a state has tokens of its own; canonical: the text has the tokens that the tokenizer gives
    it, as wherever else the model reads text."""
    think: bool = False
    """Ask for a think block before the answer block. Chat templates that know both, such as Qwen3's, are told so
    (enable_thinking): without it they open each response with an empty think block, which is inserted, not sampled."""
    forced_tag: bool = True
    """Insert the opening tag of the response instead of leaving it to the model."""
    stop_at_answer: bool = False
    """End a turn when the answer tag closes; otherwise the model has to sample the end of the turn."""
    separator: Annotated[str, Field(min_length=1)] = "||"
    """Text between two actions of one answer."""
    max_turns: Size = 5
    """Turns of a trajectory."""
    max_actions_per_turn: Size = 5
    """Actions executed per turn; further ones are cut off without penalty."""
    max_actions: Size = 10
    """Action budget of a trajectory."""
    max_response_tokens: Annotated[int, Field(ge=2, le=2**20)] = 16
    """Longest response of one turn in tokens, the end of the turn included."""
    format_penalty: Annotated[float, Field(le=0.0, allow_inf_nan=False)] = -0.1
    """Added to the return for every turn whose response breaks the format or names an unknown action."""


class ServiceConfig(Section):
    """How environments outside of the compiled loop are reached and judged, where tasks name services."""

    url: str = ""
    """Address of a server that is there, e.g. http://127.0.0.1:8000, ours or AgentGym's; with it every task is a
    service, compiled environments too. local: in this process, without HTTP. Empty: the run starts a server for each
    task and ends it."""
    token_file: str = ""
    """File with the token that the server at `url` asks for. A server that the run starts gets one drawn for it."""
    score: Literal["auto", "sum", "last", "max"] = "auto"
    """What an episode is worth: its rewards together, its last score (as AgentGym has it), or its best one. auto: max
    where scores are of the whole episode, else sum."""
    progress: NonNegative = 0.0
    """In training, weight of how far an episode came (0 to 1), added to that; for services that can tell (textcraft).
    It stays paid when an episode fails, so it is no shaping by a potential: keep it below 1, what success is worth."""
    observation_tokens: Size = 256
    """Most tokens of an observation; longer ones are cut, and counted (train/overflow)."""
    deadline: AboveZero = 60.0
    """Seconds that all environments together may take for a turn; what is late then has failed."""
    workers: Size = 64
    """Environments that are asked at once."""
    retries: Count = 3
    """Instances that an episode may lose in a turn: it is played again on fresh ones as far as it was."""
    max_failed: Annotated[float, Field(ge=0.0, le=1.0)] = 0.25
    """Share of failed episodes in an iteration above which the run ends."""


Target = Literal["query", "key", "value", "output", "gate", "up", "down"]
TARGETS: tuple[Target, ...] = get_args(Target)
"""Matrices of a decoder that can have an adapter."""


class LoraSettings(Section):
    """Low-rank adapters that are trained instead of the decoder."""

    rank: Count = 0
    """Rank of the two small matrices beside each matrix of the decoder; 0 trains the decoder itself."""
    alpha: AboveZero = 32.0
    """What they add is multiplied by alpha / rank."""
    targets: Annotated[tuple[Target, ...], Field(min_length=1)] = TARGETS
    """Matrices of every layer that have an adapter."""


class ModelConfig(Section):
    """The decoder and its critic."""

    pretrained: str = ""
    """Folder with Hugging Face's files, a .gguf file, or smollm2-135m: a decoder to go on from, with its own shape and
    tokenizer; with online a repository (org/name) of the Hugging Face Hub; empty: a fresh one of the shape below."""
    online: bool = False
    """Download the pretrained model from the Hub if there is no such folder or file."""
    revision: str = ""
    """Branch, tag or commit on the Hub; only a commit names the same weights for ever; empty: the main branch."""
    tokenizer: str = ""
    """A tokenizer.json or a folder with one and its chat template; empty: the pretrained model's, else the small one
    that is shipped with the package."""
    layers: Size = 4
    """Transformer layers."""
    embed_dim: Size = 128
    """Size of the residual stream."""
    heads: Size = 4
    """Attention heads; divides embed_dim."""
    kv_heads: Size = 2
    """Key and value heads; divides heads."""
    mlp_width: Size = 384
    """Inner size of the gated feed-forward layer."""
    rope_theta: AboveZero = 10000.0
    """Base of the rotary position embedding."""
    norm_eps: AboveZero = 1e-6
    """Added to the mean square inside RMSNorm."""
    tied_embeddings: bool = True
    """Use the token embedding as output matrix too."""
    critic: Literal["shared", "separate"] = "shared"
    """shared: a value head on the policy's last hidden state; separate: a second decoder with its own parameters."""
    lora: LoraSettings = LoraSettings()
    """Low-rank adapters; a separate critic has its own beside the same decoder."""
    frozen_layers: Count = 0
    """First layers that are not trained, and the embedding with them, or that have no adapter; 0: none of them. No
    gradient is taken through these layers, which saves up to half of its time."""
    precision: Literal["float32", "mixed", "bfloat16"] = "float32"
    """float32; mixed: bfloat16 activations; bfloat16: frozen parameters too. What is trained is float32 always, and so
    are norms, softmax, log-probabilities and losses."""
    cache: Literal["activations", "float32"] = "activations"
    """Type of the keys and values that a rollout keeps. float32 takes twice the memory of bfloat16 activations and is
    faster on CPUs, which convert bfloat16 first; the values are the same."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass computes again instead of keeping it. none: the scores of attention; dots: all but
    products with parameters and what attention makes of them; full: everything of a layer."""


class RolloutConfig(Section):
    """How trajectories are sampled."""

    group_size: Size = 16
    """Trajectories per group."""
    temperature: NonNegative = 1.0
    """Sampling temperature in training; 0 is greedy."""
    context: Literal["full", "single_turn"] = "full"
    """What the model sees of its past: every turn so far, or the current turn only."""
    slots: Count = 0
    """Rows that run at once; 0: one per episode, fewer: a finished row takes up the next episode."""
    prefill_threshold: Share = 1.0
    """Share of active rows that has to wait for an observation before it is read; 1 is a barrier after every turn."""
    prefill_chunk: Count = 0
    """Observations are read so many tokens at a time, as often as the longest that waits needs; 0: their full width at
    once. For environments whose texts differ much in length."""
    context_tokens: Count = 0
    """Most tokens of a context; an episode whose next turn might need more ends as truncated. 0: as many as there can
    be."""
    shared_noise: bool = False
    """Members of a group also share the randomness of the environment's transitions."""


class OptimConfig(Section):
    """AdamW and its schedule, for reinforcement learning."""

    lr: NonNegative | None = None
    """Learning rate of the policy; none: 3e-4 for a decoder from scratch, 1e-5 for adapters, 1e-6 for the weights of a
    pretrained model (agentrl_jax.config.rates)."""
    critic_lr: NonNegative | None = None
    """Learning rate of the critic (of the value head, where the critic shares the decoder); none: likewise 1e-3, 1e-4,
    or 1e-5."""
    warmup: Count = 0
    """Iterations over which the rates rise from 0."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""
    decay: Literal["matrices", "all"] = "matrices"
    """What decays. matrices: everything but the scales of norms and the biases; all: these too, as in verl."""
    max_grad_norm: AboveZero = 1.0
    """The gradients of policy and critic are each scaled down to this global norm."""
    b1: Decay = 0.9
    """Decay of Adam's first moment."""
    b2: Decay = 0.999
    """Decay of Adam's second moment."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rates go on after the warm-up; linear and cosine would reach 0 one iteration after the last."""


class ImitationConfig(Section):
    """Imitation before reinforcement learning."""

    levels: Annotated[int, Field(ge=0, le=2**20)] = 0
    """Different levels whose plans are imitated; 0: no imitation."""
    plans: Literal["optimal", "random"] = "optimal"
    """optimal: shortest plans; random: uniform random actions, which teach how to respond and nothing of what is
    good."""
    steps: Count = 0
    """Gradient steps of imitation."""
    batch: Positive = 64
    """Plans per gradient step."""
    lr: NonNegative = 1e-3
    """Learning rate of imitation."""
    noise: Decay = 0.0
    """Share of turns in which a random player acts, and from where the oracle goes on; only what the oracle does is
    imitated (DART, Laskey et al. 2017, arXiv 1703.09327). For services that know what is best from anywhere:
    textcraft."""


class TrainConfig(Section):
    """Length of the run and what is kept of it."""

    iterations: Count = 200
    """Iterations of rollout and update."""
    critic_warmup: Count = 0
    """First iterations in which only the critic learns; the policy and its optimizer state stay as they are. (verl's
    trainer.critic_warmup counts from 1, so that N there is N - 1 here.)"""
    checkpoint_every: Positive = 10
    """Iterations between two checkpoints; the last iteration is always saved."""
    keep: Positive = 2
    """Checkpoints kept, newest first."""
    validate_every: Count = 10
    """Iterations between two validations on fixed levels; 0: none."""
    validation_episodes: Positive = 128
    """Levels of a validation."""
    validation_temperature: NonNegative = 0.5
    """Temperature of the validation."""
    max_bad_updates: Positive = 5
    """The run stops after this many skipped updates in a row (not finite, or without a token to learn from)."""
    on_collapse: Literal["go_on", "stop", "roll_back"] = "go_on"
    """What to do when an alarm says that learning has come to its end (`agentrl_jax.algos.collapse` lists them);
    metrics.jsonl and the terminal tell of alarms either way. roll_back: go on from the last checkpoint before it began,
    with lower rates and other draws; more checkpoints are kept for it. What was given up stays in roll_backs/."""
    roll_back_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """What a roll-back multiplies the learning rates by."""
    max_roll_backs: Count = 3
    """Roll-backs after which learning goes on; the next one ends the run at that checkpoint."""
    mutual_information_every: Count = 0
    """Iterations between two measurements of how much responses depend on their prompts (docs/guides/collapse.md), and
    of how far the policy is from the start of learning, of which the run then keeps a copy; the first iteration is
    always measured; 0: none."""
    mutual_information_pairs: Annotated[int, Field(ge=2, le=2**16)] = 64
    """Most responses of a measurement, each of which is scored under the prompts of all."""
    trajectories_every: Count = 10
    """Iterations between two entries in trajectories.jsonl; 0: none."""
    trajectories: Positive = 4
    """Trajectories written each time."""


class EvalConfig(Section):
    """The held-out evaluation at the end of a run and of `agentrl eval`."""

    episodes: Positive = 512
    """Held-out levels; of a task with a level file, at most each of its levels once."""
    temperature: AboveZero = 1.0
    """Temperature of the sampled evaluation; a greedy one is always made beside it."""
    seed: Seed = 123
    """Seed of the held-out levels and of their sampling."""


class MeshConfig(Section):
    """How the devices of a run share parameters; see `parallel.layout`."""

    fsdp: Positive = 1
    """Devices that share parameters, optimizer state and rows while learning."""
    tensor: Positive = 1
    """Devices that share each matrix and its heads."""
    rollout: Literal["rows", "wide"] = "rows"
    """What the fsdp devices do in a rollout: play episodes of their own (rows), or share each matrix too (wide)."""


class Config(Section):
    """Everything that decides a run."""

    seed: Seed = 0
    """Seed of parameters, levels, sampling and the order of minibatches."""
    run_dir: str = ""
    """Folder of the run; empty: runs/<name of the YAML file>."""
    devices: Count = 1
    """Devices of the run; 0: all there are. What `mesh` leaves over shares the batch."""
    mesh: MeshConfig = MeshConfig()
    """How devices share parameters."""
    tasks: Annotated[tuple[TaskConfig, ...], Field(min_length=1)] = (TaskConfig(env="SimpleSokoban", groups=8),)
    """Tasks of the batch, each with its groups and its metrics."""
    env: ServiceConfig = ServiceConfig()
    """Environments behind services."""
    prompt: PromptConfig = PromptConfig()
    """Prompt and response."""
    model: ModelConfig = ModelConfig()
    """Decoder and critic."""
    rollout: RolloutConfig = RolloutConfig()
    """Sampling."""
    algo: AlgoConfig = AlgoConfig()
    """Learning rule."""
    optim: OptimConfig = OptimConfig()
    """Optimizer."""
    imitation: ImitationConfig = ImitationConfig()
    """Imitation."""
    train: TrainConfig = TrainConfig()
    """Length and records."""
    evaluation: EvalConfig = EvalConfig()
    """Held-out evaluation."""

    @property
    def served(self) -> bool:
        """Whether the tasks are services."""
        return bool(self.env.url) or any(task.env in TEXT_SERVICES for task in self.tasks)
