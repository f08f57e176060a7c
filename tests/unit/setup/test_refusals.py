import json
import shutil

import made_run
import pytest
import tiny_run
from refusing import refusal
from rich.console import Console

from agentrl_jax.api import load_policy
from agentrl_jax.config import load_config
from agentrl_jax.train.run import train


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of runs by name: of the program's own environments, of a pretrained model, and of a service."""
    home = tmp_path_factory.mktemp("refused")
    model = made_run.write_model(home / "weights")
    texts = {"tiny": tiny_run.CONFIG, "model": made_run.pretrained_config(model, "lora"), "maze": tiny_run.MAZE}
    for name, text in texts.items():
        (home / name).mkdir()
        texts[name] = tiny_run.write_config(home / name, text)
    return texts


def refused(file, run, words):
    given = [*words.split(" "), "--run_dir", str(run)]
    error = refusal(lambda: train(load_config(file, given), Console(quiet=True)))
    assert "\n" not in str(error)
    return error


def test_what_cannot_run_takes_no_folder_and_a_server_that_is_not_there_is_named(files, tmp_path):
    for kind, words, key in (
        ("tiny", "--model.tokenizer absent", "absent"),
        ("tiny", "--tasks.0.groups 14 --devices 16 --imitation.batch 16", "devices"),
        ("tiny", "--devices 0", "devices"),
        ("tiny", "--prompt.max_response_tokens 4", "max_response_tokens"),
        ("tiny", '--tasks [{"env":"Bandit","groups":4}] --prompt.max_response_tokens 40', "Bandit"),
        # XLA would abort the process.
        ("tiny", "--devices 2 --mesh.tensor 2 --model.precision mixed", "mesh.tensor"),
        ("model", "--model.frozen_layers 2 --model.lora.rank 0", "frozen layers"),
        ("model", "--model.pretrained nowhere", "nowhere"),
        ("model", "--prompt.max_turns 40", "prompt.max_turns"),
        ("maze", "--tasks.0.items 0-40", "tasks.0.items"),
        ("maze", "--tasks.0.held_out nowhere.json", "nowhere.json"),
        ("maze", "--env.progress 0.5", "env.progress"),
        ("maze", "--imitation.noise 0.3 --imitation.plans optimal", "imitation.noise"),
        ("maze", "--env.url ftp://x", "ftp://x"),
        ("maze", "--env.token_file nowhere --env.url http://127.0.0.1:9", "nowhere"),
        ("maze", "--rollout.context_tokens 50", "context_tokens"),
    ):
        error = refused(files[kind], tmp_path / "run", words)
        assert key in (error.key or str(error))
        assert not (tmp_path / "run").exists()
    error = refused(files["maze"], tmp_path / "run", "--env.url http://127.0.0.1:9 --env.deadline 0.1")
    assert "http://127.0.0.1:9" in str(error)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return made_run.write_run(tmp_path_factory.mktemp("runs") / "run")


def test_checkpoints_that_were_not_copied_as_a_whole_or_are_gone_are_named(made, tmp_path, capsys):
    run = shutil.copytree(made, tmp_path / "run")
    assert (load_policy(run).step, capsys.readouterr().err) == (7, "")
    shutil.copytree(run / "checkpoints" / "7", run / "checkpoints" / "9")
    (run / "checkpoints" / "9" / "digests.json").unlink()
    assert load_policy(run).step == 7
    said = capsys.readouterr().err
    assert (said.count("\n"), "checkpoint 9" in said, "step 7" in said) == (1, True, True)
    assert (load_policy(run, 7).step, capsys.readouterr().err) == (7, "")
    shutil.rmtree(run / "checkpoints")
    assert refusal(load_policy, run).value is None
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "stage": "rl", "iteration": 1}) + "\n")
    lost = refusal(load_policy, run)
    assert (lost.value, lost.key) == (1, str(run))
