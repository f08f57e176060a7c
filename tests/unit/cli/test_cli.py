import dataclasses
import errno
import importlib.metadata
import json
import os
import subprocess
import sys
import types
from unittest import mock

import pytest
from refusing import refusal
from tiny_run import command as run
from tiny_run import refusal as sentence

from agentrl_jax import __main__
from agentrl_jax.cli import compiled, view
from agentrl_jax.cli import main as cli
from agentrl_jax.environments.kinds import listed_names
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate import environment_checks
from agentrl_jax.evaluate.statistics import success_interval
from agentrl_jax.services.environments.maze import env as maze
from envs_jax import registry
from envs_jax.checks.report import Report, Result
from envs_jax.known_baselines import BASELINES


def replace(monkeypatch, module, **functions):
    """Replaces a module by one of these functions, without importing what it needs."""
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**functions))


def test_help_also_of_a_file_and_the_version(tmp_path, monkeypatch):
    for words, parts in (
        ("", "train eval envs play chat export --version"),
        ("train --help", "FILE.yaml --algo.objective.clip_high --tasks.0.env starpo_grpo"),
        ("eval --help", "RUN --levels --json"),
        ("play --help", "ENV --style compact panel other-levels"),
    ):
        code, out, err = run(*words.split())
        assert (code, err, [part for part in parts.split() if part not in out]) == (0, "", [])
    (tmp_path / "a.yaml").write_text("algo: {objective: {clip_high: 0.31}}")
    _, out, _ = run("train", str(tmp_path / "a.yaml"), "--optim.lr", "0.125", "--help")
    assert {"--algo.objective.clip_high 0.31", "--optim.lr 0.125"} <= {*map(str.strip, out.splitlines())}
    assert run("--version") == (0, f"agentrl {importlib.metadata.version('agentrl_jax')}\n", "")
    monkeypatch.setattr(importlib.metadata, "version", mock.Mock(side_effect=importlib.metadata.PackageNotFoundError))
    assert "agentrl_jax is not installed" in sentence("--version")


RANDOM = "--policy random --env babyai"
API = "--api m --base_url http://127.0.0.1:9/v1 --env maze --out out"
MISTAKES = f"""
trian                                           | train
train                                           | FILE.yaml
train --algo.objective.clip_high 1              | YAML file is expected
train absent.yaml                               | absent.yaml: no such file
eval run --epsodes 3                            | --epsodes: --episodes
eval run --episodes x                           | --episodes: 'x'
eval run --env Sokban                           | SimpleSokoban: --env
eval run --levels absent.txt                    | absent.txt: no such file
envs --levels 0                                 | --levels is 0: at least 1
envs --check Sokban                             | SimpleSokoban: --check
envs --check maze --seeds 0                     | --seeds is 0: at least 1
envs --check maze --seeds 2000000               | --seeds is 2000000: at most 1000000
envs --check maze --levels 9                    | --levels is 9: give --seeds
envs --check maze --out .                       | --out is .: is a folder
envs --check alfworld                           | alfworld: without a self-check
envs --out a.json                               | --out is a.json: only with --check
play Bandit --levels absent.txt                 | absent.txt: no such file
play Bandit --levels .                          | no file
play BabyAI-GoToObjS6 --levels panel            | --levels is panel: play BabyAI, or leave
play Bandit --seed -1                           | --seed is -1: from 0
chat nowhere                                    | nowhere: no such folder
chat nowhere --temperature -1                   | --temperature is -1: 0 or more
chat nowhere --length 0                         | --length is 0: at least 1
export nowhere                                  | FOLDER
eval run --seed {2**70}                         | --seed is: from 0
eval {RANDOM} --items 3 --episodes 9            | --episodes is 9: --items names the items
eval {RANDOM} --workers 2                       | --workers is 2: --record or --url
eval {API} --token_file token                   | --token_file is token: without --url there is no server
eval {API} --request_timeout inf                | --request_timeout is inf: above 0
serve nosuch                                    | known are babyai, maze: wordle, Bandit: server only
serve maze --request_timeout inf                | --request_timeout is inf: above 0
serve maze --idle_timeout nan                   | --idle_timeout is nan: 0 for never
serve maze --max_body 0                         | --max_body is 0: at least 1
serve-model run --request_timeout nan           | --request_timeout is nan: above 0
serve-model run --port 70000                    | --port is 70000: from 0 to 65535
serve-model run --max_batch 0                   | --max_batch is 0: at least 1
serve-model run --token_file absent             | absent: cannot be read
serve-model nowhere                             | nowhere: no such folder
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_a_mistake_is_one_line_and_exit_code_2(line):
    words, parts = (part.strip() for part in line.split("|"))
    err, error = sentence(*words.split()), refusal(cli._run, words.split())
    for part in (*parts.split(": "), error.key):
        assert part in err
    if parts.startswith("--"):
        assert error.key == parts.split()[0].removesuffix(":")


def test_a_mistake_in_a_configuration(tmp_path):
    (tmp_path / "a.yaml").write_text("tasks: [{env: FrozenLake, groups: 4, options: {slipp: 1}}]")
    err = sentence("train", str(tmp_path / "a.yaml"))
    assert ("tasks.0" in err, "'slipp'" in err) == (True, True)


def test_train_hands_the_configuration_to_the_loop_and_shows_its_errors_and_interrupts(monkeypatch, tmp_path):
    ends, seen = [UserError("runs/a: holds a run\nwith another configuration"), *[KeyboardInterrupt()] * 2], []

    def end(config, *, accept_changes, rules_changed):
        seen.append((config.seed, config.train.iterations, config.run_dir, config.start.run, accept_changes))
        raise ends.pop(0)

    (tmp_path / "a.yaml").write_text("seed: 4\ntasks: [{env: Bandit, groups: 4}]")
    replace(monkeypatch, "agentrl_jax.train.run", train=end)
    words = "train", str(tmp_path / "a.yaml"), "--train.iterations", "3"
    assert "holds a run with another configuration" in sentence(*words)
    code, _, err = run(*words)
    assert (code, err.count("\n")) == (130, 1)
    assert run(*words, "--from", "runs/b", "--checkpoint=7", "--accept_changes")[0] == 130
    folder = os.path.join("runs", "a")
    assert seen == [(4, 3, folder, "", False)] * 2 + [(4, 3, folder, "runs/b", True)]
    assert "--accept_changes" in sentence("train", "--accept-changes", "--accept_changes")


def test_eval_prints_json_or_a_table_and_keeps_the_result(monkeypatch, tmp_path):
    interval, calls = {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8}, []
    seen = {"held_out": True, "levels": 8, "distinct_levels": 7, "seen_levels": 0}
    found = {"env": "Bandit", "success": interval, "success_greedy": interval, "seen": seen}
    found |= {"run": "runs/[b]", "step": 164, "temperature": 0.5, "seed": 7, "random": success_interval([0.296])}

    def evaluate_run(run_dir, *, report, **options):
        report("eight levels")
        calls.append((run_dir, options))
        return found

    replace(monkeypatch, "agentrl_jax.evaluate.eval_set", evaluate_run=evaluate_run)
    code, out, err = run("eval", "runs/a", "--json", "--env", "Bandit", "--seed", "7")
    assert (code, err, json.loads(out)["success"]) == (0, "eight levels\n", interval)
    nothing = {"checkpoint": "last", "samples": 1, "best_of": (), "selector": "oracle", "clusters": False}
    nothing |= dict.fromkeys(("levels", "episodes", "temperature", "panel", "record")) | {"screenshots": False}
    assert calls == [("runs/a", {"env": "Bandit", "seed": 7, **nothing})]
    code, out, _ = run("eval", "runs/a", "--out", str(tmp_path / "a.json"))
    kept = json.loads((tmp_path / "a.json").read_text())
    assert (code, kept["run"], kept["step"], kept["success"]) == (0, "runs/[b]", 164, interval)
    assert kept["made_by"].keys() >= {"version", "commit", "host", "date", "command"}
    for part in ("runs/[b], step 164, temperature 0.5, seed 7", "29.6%", "25.0%", "Bandit: 8 levels, 7 different"):
        assert part in out


def test_envs_lists_every_environment(monkeypatch):
    computed = mock.Mock(return_value=(0.125, float("nan")))
    monkeypatch.setattr(registry, "baselines", computed)
    code, out, _ = run("envs", "--json")
    rows = json.loads(out)
    assert (code, computed.called) == (0, False), "what is known is not computed again"
    assert [row["env"] for row in rows] == list(registry.registered())
    known = dict(zip(("random", "optimal"), BASELINES["FrozenLake"]))
    assert rows[5] == {**rows[5], "env": "FrozenLake", **known, "max_actions": 10}
    assert rows[5]["success_rule"] == "the player is on the goal"
    _, out, _ = run("envs", "--json", "--levels", "9")
    rows = json.loads(out)
    assert [call.args[0] for call in computed.call_args_list] == list(registry.registered())
    assert rows[0] == {**rows[0], "random": 0.125, "optimal": None, "max_actions": 1}
    _, out, _ = run("envs", "--seed", "1")
    for part in ("12.5%", "unknown", "the player is on the goal", "textcraft", "webarena"):
        assert part in out


def test_envs_checks_an_environment_and_a_check_that_fails_is_exit_code_1(tmp_path, monkeypatch):
    file = tmp_path / "maze.json"
    code, out, err = run("envs", "--check", "maze", "--seeds", "5", "--json", "--out", str(file))
    found = json.loads(out)
    assert (code, found) == (0, json.loads(file.read_text()))
    (report,) = found["environments"]
    assert (report["env"], report["kind"], report["episodes"]) == ("maze", "service", 5)
    assert {check["status"] for check in (found, report, *report["checks"])} == {"pass"}
    assert "maze: oracle policy, 5 items\n" in err
    monkeypatch.setattr(maze, "SERVICE", dataclasses.replace(maze.SERVICE, score_range=(0.0, 0.5)))
    code, out, _ = run("envs", "--check", "maze", "--seeds", "5")
    assert code == 1
    assert "maze, reward_range fail: a score is outside the declared range from 0 to 0.5" in " ".join(out.split())
    assert '"found": "score 1"' in out


def test_all_checks_every_environment(monkeypatch, tmp_path):
    """What is found is printed and written before the next environment is checked."""
    asked, file, written = [], tmp_path / "new" / "all.json", []

    def checked(name, *, seeds, progress):
        asked.append((name, seeds))
        written.append(json.loads(file.read_text()) if file.exists() else None)
        return Report(name, "compiled", 3, 1.0, (Result("null_floor", "skipped" if name == "sciworld" else "pass"),))

    monkeypatch.setattr(environment_checks, "check_environment", checked)
    code, out, _ = run("envs", "--check", "all", "--seeds", "3", "--out", str(file))
    names = listed_names()
    assert (code, asked, written[0]) == (0, [(name, 3) for name in names], None)
    assert {"Bandit", "SimpleSokoban", "BabyAI-BossLevel", "textcraft", "babyai"} <= {*names}
    assert all(f"{name}: 3 episodes" in " ".join(out.split()) for name in names)
    for number, document in enumerate([*written[1:], json.loads(file.read_text())], 1):
        assert [report["env"] for report in document["environments"]] == [*names[:number]]
        assert document["unchecked"] == [*names[number:]]


def test_ctrl_c_while_the_commands_are_imported_is_one_line(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "agentrl_jax.cli.main")
    interrupted = types.SimpleNamespace(find_spec=mock.Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(sys, "meta_path", [interrupted, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "agentrl: stopped\n")


IMPORTS = """
import importlib, pkgutil, sys, jax, agentrl_jax.cli.main
jax.config.update("jax_num_cpu_devices", 3)
print(jax.device_count())
for found in pkgutil.walk_packages(agentrl_jax.__path__, "agentrl_jax."):
    if not found.name.endswith(("__main__", "template_worker", "textarena_adapter")):
        importlib.import_module(found.name)
unneeded = {"transformers", "huggingface_hub", "gguf", "jinja2", "seaborn", "gymnax.environments.minatar"}
print(unneeded & sys.modules.keys())
"""


def test_the_module_is_the_command_starts_no_backend_and_imports_no_package_early():
    """Devices are set, and processes joined, before JAX computes anything, as gymnax's environments do on import."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "3\nset()\n"
    # Its output may be cut.
    piped = f"'{sys.executable}' -m agentrl_jax train --help | head -n 1"
    reader = subprocess.run(piped, shell=True, capture_output=True, text=True, check=True)
    assert (reader.stdout.startswith("Train an agent"), reader.stderr) == (True, "")


def test_a_page_that_could_not_be_written_is_refused_before_data_are_opened(tmp_path, monkeypatch):
    """One that is written elsewhere, or not at all, does not need the run's folder."""

    def try_writing(folder):
        if os.fspath(folder) == str(tmp_path / "run"):
            raise OSError(errno.EROFS, "Read-only file system", str(folder))

    monkeypatch.setattr(view, "_opened", mock.Mock(side_effect=KeyError))
    monkeypatch.setattr(view, "try_writing", try_writing)
    (run := tmp_path / "run").mkdir()
    for export in ("", str(run / "page.html")):
        error = refusal(view.run, view.View(str(run), export=export))
        assert (error.key, "Read-only file system" in str(error)) == ("--export", True)
    for options in ({"live": True}, {"export": str(tmp_path / "page.html")}):
        with pytest.raises(KeyError):
            view.run(view.View(str(run), **options))


def test_a_compilation_cache_has_a_limit_where_jax_can_keep_it(tmp_path, monkeypatch):
    names = [f"JAX_{name}" for name in ("COMPILATION_CACHE_DIR", "COMPILATION_CACHE_MAX_SIZE")]
    names += ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]
    for name in names:
        monkeypatch.setenv(name, ""), monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def kept():
        compiled.keep()
        return [os.environ.get(name) for name in names]

    assert kept() == [str(tmp_path / "agentrl_jax" / "compiled"), str(compiled.MAX_BYTES), "0"]
    (own := tmp_path / "own").mkdir()
    for kind in ("cache", "atime"):
        (own / f"jit-{kind}").touch()
    monkeypatch.setenv(names[0], str(own)), monkeypatch.delenv(names[1])
    assert kept() == [str(own), str(compiled.MAX_BYTES), "0"]
    (own / "other-cache").touch()  # another program has filled it without a limit
    monkeypatch.delenv(names[1])
    assert kept() == [str(own), None, "0"]
