"""Commands that are refused by one sentence before a run folder is made."""

import pretrained_run
import pytest
import service_run
import tiny_run


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of runs by name: of the program's own environments, of a pretrained model, and of a service."""
    home = tmp_path_factory.mktemp("refused")
    model = pretrained_run.write_model(home / "weights")
    texts = {"tiny": tiny_run.CONFIG, "model": pretrained_run.config(model, "lora"), "maze": service_run.CONFIG}
    for name, text in texts.items():
        (home / name).mkdir()
        texts[name] = tiny_run.write_config(home / name, text)
    return texts


BANDIT = '[{"env": "Bandit", "groups": 4}]'
ONE_GROUP = '[{"env": "FrozenLake", "groups": 1}]'


@pytest.mark.parametrize(
    ("kind", "words", "parts"),
    [
        ("tiny", "--model.tokenizer absent", ["absent", "no such tokenizer"]),
        ("tiny", "--tasks.0.groups 14 --devices 16 --imitation.batch 16", ["devices is 16", "has 8"]),
        ("tiny", "--devices 0", ["devices is 8", "4 groups"]),
        ("tiny", "--rollout.slots 6", ["rollout.slots is 6", "rollout.group_size = 4"]),
        ("tiny", "--devices 2 --rollout.slots 12", ["rollout.slots is 12", "2 replicas", "16 episodes"]),
        ("tiny", "--prompt.max_response_tokens 4", ["max_response_tokens is 4", "at least 5"]),
        ("tiny", ["--tasks", BANDIT, "--prompt.max_response_tokens", "40"], ["Bandit has no planner"]),
        (
            "tiny",
            ["--tasks", ONE_GROUP, "--algo.filter", "none", "--train.mutual_information_every", "5"],
            ["compares groups, but there is one"],
        ),
        # XLA would abort the process.
        (
            "tiny",
            "--devices 2 --mesh.tensor 2 --model.precision mixed",
            ["mesh.tensor is 2", "bfloat16", "XLA cannot compile for CPUs"],
        ),
        ("model", "--model.layers 3", ["model.layers is 3, but model.pretrained '"]),
        ("model", "--model.frozen_layers 2 --model.lora.rank 0", ["2 frozen layers of 2"]),
        ("model", "--model.lora.rank 0", ["model.precision is bfloat16"]),
        ("model", "--model.pretrained nowhere", ["nowhere: no such folder"]),
        ("model", ["--model.pretrained", ""], ["model.pretrained is empty"]),
        ("model", "--model.revision main", ["model.revision is 'main', but model.online is false"]),
        (
            "model",
            ["--model.online", "true", "--model.pretrained", ""],
            ["model.online is true, but model.pretrained is empty"],
        ),
        ("model", "--prompt.max_turns 40", ["the longest context of a rollout has"]),
        ("maze", ["--tasks.0.items", ""], ["tasks.0.items is empty"]),
        ("maze", "--tasks.0.items 0-40", ["expected numbers below 25"]),
        ("maze", "--tasks.0.held_out nowhere.json", ["nowhere.json"]),
        ("maze", "--prompt.style compact", ["use chat or bare"]),
        ("maze", "--prompt.stop_at_answer true", ["stop_at_answer"]),
        ("maze", ["--tasks.0.env", "FrozenLake", "--env.url", ""], ["use compact or ragen"]),
        ("maze", "--env.progress 0.5", ["maze does not report progress"]),
        ("maze", "--imitation.noise 0.3", ["for imitation.plans optimal"]),
        ("maze", "--imitation.noise 0.3 --imitation.plans optimal", ["no oracle for every state"]),
        ("maze", "--env.url ftp://x", ["no address of a service"]),
        ("maze", "--env.token_file nowhere --env.url http://127.0.0.1:9", ["nowhere"]),
        ("maze", "--rollout.context_tokens 50", ["context_tokens 50; expected at least"]),
        ("maze", "--algo.dynamic_sampling 2", ["dynamic_sampling"]),
    ],
    ids=str,
)
def test_what_cannot_run_takes_no_folder(files, tmp_path, kind, words, parts):
    words = words.split() if isinstance(words, str) else words
    message = tiny_run.refused(tmp_path / "run", files[kind], *words)
    for part in parts:
        assert part in message
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_not_there_is_named(files, tmp_path):
    message = tiny_run.refused(
        tmp_path / "run", files["maze"], "--env.url", "http://127.0.0.1:9", "--env.deadline", "0.1"
    )
    assert "maze at http://127.0.0.1:9" in message
    assert "ConnectError" in message
