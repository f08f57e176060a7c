"""The commands of `agentrl` and their options; the texts are what `--help` shows."""

import dataclasses
from typing import Annotated, Literal

import tyro


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an agent, or go on with a run that was stopped."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.yaml")]
    """YAML file with the configuration."""


@dataclasses.dataclass(frozen=True)
class Compare:
    """Train several learning rules from the same starts with several seeds each, and report what each reached."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.yaml")]
    """YAML file with the run, its variants and the number of seeds; experiments/presets_frozen_lake.yaml is one."""
    out: str = ""
    """Folder for the variants, the report and its figure; default: runs/<name of the file>. Variants that it holds are
    not played again."""
    only: tuple[str, ...] = ()
    """Variants to play now; the report has all that have been played."""


@dataclasses.dataclass(frozen=True)
class Eval:
    """Evaluate the newest checkpoint of a run on held-out levels, sampled and greedy; or a player by script."""

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="RUN")] = None
    """Folder of the run, e.g. runs/demo; left out with --policy."""
    env: str | None = None
    """Another environment than the run's first one; `agentrl envs` lists them. With --policy: textcraft, sciworld,
    maze, wordle, or an environment's tag."""
    policy: Literal["oracle", "random"] | None = None
    """Scripted player to evaluate instead of a run, in the service --env."""
    items: str | None = None
    """Items for a scripted player: numbers such as 0-99, or an item file; default: --episodes (200) drawn by --seed."""
    turns: int | None = None
    """Most turns of its episodes; default: what is usual."""
    url: str = "local"
    """Address of the server that it plays on; local: in this process."""
    token_file: str = ""
    """File with the token that this server asks for."""
    workers: int = 4
    """Episodes that it plays at once."""
    levels: str | None = None
    """File with the levels to play: Sokoban in XSB symbols or FrozenLake maps in S F H G, a blank line between two."""
    episodes: int | None = None
    """Held-out levels; default: evaluation.episodes of the run. With --levels every level is played once."""
    temperature: float | None = None
    """Sampling temperature; default: evaluation.temperature of the run."""
    seed: int | None = None
    """Seed of levels and sampling; default: evaluation.seed of the run."""
    json: bool = False
    """Print one JSON object with success.{mean,low,high,n} instead of a table."""


@dataclasses.dataclass(frozen=True)
class Envs:
    """List the environments with the success of random play and of optimal play that sees the state before every
    action."""

    levels: int = 512
    """Levels per environment on which both are computed exactly, which takes a while unless levels and seed are left
    as they are."""
    seed: int = 0
    """Seed of the levels."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Play:
    """Play an environment yourself, reading the exact text that the agent reads."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Tag of the environment; `agentrl envs` lists them."""
    style: Literal["compact", "ragen"] = "ragen"
    """Prompt style."""
    think: bool = False
    """Ask for a think block, as the agent would be asked."""
    seed: int = 0
    """Seed of the level and of chance."""
    levels: str | None = None
    """File with levels in text; the first one is played."""


@dataclasses.dataclass(frozen=True)
class Chat:
    """Talk with a pretrained model, or with the policy of a run that went on from one."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Folder of a run, folder with Hugging Face's files, a .gguf file, or smollm2-135m."""
    system: str = ""
    """System message; empty for the one that the model's chat template has, if any."""
    temperature: float = 0.0
    """Sampling temperature; 0 takes the likeliest token."""
    max_tokens: int = 256
    """Longest response in tokens."""
    length: int = 2048
    """Tokens of the whole conversation."""
    seed: int = 0
    """Seed of sampling."""
    thinking: Literal["auto", "on", "off"] = "auto"
    """Think before responses, for chat templates that know both (Qwen3); auto: as the run was trained (prompt.think),
    or as the template has it."""
    online: bool = False
    """Download the model from the Hugging Face Hub if there is no such folder or file."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write the policy of a run, or a pretrained model, as Hugging Face keeps it, for transformers, vLLM and others."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Folder of a run, e.g. runs/demo, or a model as for `agentrl chat`."""
    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
    """New folder."""
    adapter: bool = False
    """Write only the adapter of a run that has one (model.lora), for PEFT; otherwise it is added to the weights."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the weights; default: float32."""
    online: bool = False
    """Download the model from the Hugging Face Hub if there is no such folder or file."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Compile a run for devices that need not be there, and print the memory and the collectives that it takes.

    Any key of the configuration can be given behind the file, as in `agentrl train`.
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.yaml")]
    """YAML file with the configuration."""
    topology: str = "local"
    """TPU slice such as v5e:4x4 or v5p:4x4x8 (needs the package libtpu), or local for the devices of this machine."""
    shape: str | None = None
    """Published model, e.g. qwen2.5-7b, of which only the shape is needed, instead of the configuration's."""
    json: bool = False
    """Print one JSON object, in bytes, instead of tables."""


@dataclasses.dataclass(frozen=True)
class Presets:
    """Print the learning rules that have a name: every value, and where it comes from."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """One of them; left out: a line for each."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Diagnose:
    """Say whether a run has collapsed, when, and on which evidence; the run may still go on."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run, e.g. runs/demo."""
    figure: str | None = None
    """Path of a figure (.png) of the indicators to write; default: diagnosis.png in the folder of the run."""
    json: bool = False
    """Print one JSON object with verdict, text and alarms instead of sentences."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure estimators of the policy gradient against the exact one, on a task whose trajectories can be counted."""

    what: Annotated[tyro.conf.Positional[Literal["estimators"]], tyro.conf.arg(metavar="estimators")]
    """What is measured."""
    group_size: tuple[int, ...] = (2, 3)
    """Sizes of the groups; all groups of 2 or 3 are summed over, which takes some seconds a case."""
    policy: Literal["table", "one_layer"] = "table"
    """A free logit for everything the policy can see, or a hidden layer that shares parameters."""
    drift: Literal["none", "small", "large"] = "none"
    """How far the policy that draws the groups is from the trained one; other than none, clips and importance weights
    are what is measured."""
    direction: int = 0
    """Seed of the direction in which the policy that draws has moved."""
    draws: int = 0
    """Groups that are sampled instead, for larger groups; 0: all groups are summed over."""
    only: str = ""
    """Only estimators whose names hold this text."""
    seed: int = 0
    """Seed of the sampling."""
    figure: str | None = None
    """Path of a figure (.png) to write."""
    format: Literal["table", "markdown", "json"] = "table"
    """What is printed."""


@dataclasses.dataclass(frozen=True)
class Serve:
    """Serve an environment over HTTP, by the protocol of AgentGym, until a signal comes."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """textcraft, sciworld, maze, wordle, or an environment's tag, e.g. FrozenLake; `agentrl envs` lists tags."""
    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 lets other machines in: then give a token too."""
    port: int = 8000
    """Its port; 0 for any that is free."""
    max_instances: int = 256
    """Instances that may be open at once. When all are, a new one replaces one that is finished, or else the one that
    was idle longest, see reclaim_after; without one the new one is refused with status 503."""
    reclaim_after: float = 300.0
    """Seconds without a request after which an unfinished instance may be replaced by a new one; 0 for never."""
    idle_timeout: float = 3600.0
    """Seconds without a request after which an instance is closed; 0 for never."""
    request_timeout: float = 300.0
    """Seconds that a request may take; its instance is given up then."""
    max_body: int = 1024 * 1024
    """Largest body of a request, in bytes."""
    max_action: int = 65536
    """Longest action, in characters; longer ones are refused with status 422."""
    max_connections: int = 512
    """Connections that may be open at once; those that are idle are closed for new ones."""
    allowed_hosts: tuple[str, ...] = ()
    """Further host names that clients may reach this server by, beside the address it listens on."""
    workers: int = 64
    """Requests that are worked on at once."""
    token_file: str = ""
    """File with a token that every request has to bear (Authorization: Bearer TOKEN); empty for none."""
    compat: Literal["none", "upstream"] = "none"
    """upstream: repeat what AgentGym's own servers get wrong, for parity with published runs."""
    announce: bool = False
    """For a parent process: print the address as a line of JSON when it listens, and end when standard input closes."""
