import json
import shutil

import chex
import jax
import jax.numpy as jnp
import pytest
import tiny_run
from exported_runs import check_adapter, check_weights, exported

from agentrl_jax.config import decode
from agentrl_jax.models.io.load import load_pretrained, name_on_hub
from agentrl_jax.setup import build
from agentrl_jax.setup.policy import RunPolicy
from agentrl_jax.studies import export
from agentrl_jax.text import prompt
from agentrl_jax.text import tokenizer as tokenizers
from agentrl_jax.text.conversation import messages_of


def refused(*words):
    return tiny_run.refusal("export", *map(str, words))


@pytest.mark.nightly
def test_what_is_read_again_is_the_policy(runs, tmp_path):
    (model, run), new = runs, tmp_path / "new"
    again, words = check_weights(run("fresh"), new)
    assert again.config.raw["eos_token_id"] == words.end_of_turn_id
    assert again.config.raw["max_position_embeddings"] > 2 * 6  # the length of a conversation of the run
    assert "<answer>" in words.template.source
    before = {path.name: path.read_bytes() for path in new.iterdir()}
    assert "new: exists and is not an empty folder; give a new folder" in refused(run("fresh"), new)
    assert {path.name: path.read_bytes() for path in new.iterdir()} == before
    check_adapter(run("lora"), model, tmp_path / "adapter", "bfloat16")


def of_scratch(tmp_path, **data):
    config = decode({"tasks": [{"env": "FrozenLake", "groups": 2}], **data}, source="test")
    words = tokenizers.load_small()
    policy = RunPolicy(0, 0, None, {}, words, tokenizers.small_files(), None)
    for name, content in export.tokenizer_files(config, policy).items():
        (tmp_path / name).write_bytes(content)
    return words, config, tmp_path


@pytest.mark.parametrize(
    ("style", "think", "forced"), [("compact", False, True), ("ragen", True, True), ("bare", True, False)]
)
def test_other_programs_write_the_prompts_of_a_run_from_scratch(style, think, forced, tmp_path):
    """Token for token: two turns as the engine writes them, and as transformers does with what is exported."""
    transformers = pytest.importorskip("transformers")
    settings = {"style": style, "think": think, "forced_tag": forced, "max_turns": 3}
    words, config, folder = of_scratch(tmp_path, prompt=settings)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    form = build.build_compiled_env(config, words).tasks[0].prompt
    observation = jnp.arange(5, dtype=jnp.int32)
    known = {"reward": jnp.float32(-0.1), "response_ended": jnp.bool_(True)}
    write = jax.jit(
        lambda turn: prompt.message(form, observation, turn=turn, actions_left=8 - turn, first=turn == 0, **known)
    )
    said = "<think>so</think><answer>Up || Left</answer>" if think else "<answer>Up || Left</answer>"
    opening = ("<think>" if think else "<answer>") if forced else ""
    ids = form.prefix.tolist()
    for turn in range(2):
        tokens, length = write(jnp.int32(turn))
        ids += tokens[: int(length)].tolist()
        given = [
            {"role": role, "content": text.removeprefix(opening) if role == "assistant" else text}
            for role, text in messages_of(words, ids)
        ]
        # The header and the opening of the response that is to come give no message of their own.
        given = given[: 1 + max(i for i, message in enumerate(given) if message["role"] == "user")]
        assert sum(message["role"] == "assistant" for message in given) == turn
        assert theirs.apply_chat_template(given, add_generation_prompt=True, return_dict=False) == ids
        ids += [*words.encode(said.removeprefix(opening)), words.end_of_turn_id]


def test_the_prompts_of_single_turns_are_written_too(tmp_path):
    words, _, folder = of_scratch(tmp_path, rollout={"context": "single_turn"})
    turns = [("system", "s"), ("user", "Up?"), ("assistant", "Down</answer>"), ("user", "Left?")]
    shown = tokenizers.load(folder).template.render(turns, generate=True)
    assert (shown, words.template) == ("<|system|>s<|user|>Left?<|assistant|><answer>", None)


def test_a_pretrained_model_is_written_without_settings_of_generation(runs, tmp_path):
    """Of them only token ids are the policy's; with the others, vLLM and transformers would change every reply."""
    model, _ = runs
    base, old = shutil.copytree(model, tmp_path / "base"), load_pretrained(model)
    sampling = {"do_sample": True, "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    ids = {"eos_token_id": [1, 0], "pad_token_id": 0}
    (base / "generation_config.json").write_text(json.dumps(sampling | ids | {"transformers_version": "5"}))
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(settings | sampling))
    tiny_run.done("export", str(base), str(tmp_path / "new"))
    chex.assert_trees_all_equal(load_pretrained(base).params, load_pretrained(tmp_path / "new").params)
    assert json.loads((tmp_path / "new" / "generation_config.json").read_text()) == ids
    assert not sampling.keys() & json.loads((tmp_path / "new" / "config.json").read_text()).keys()
    tiny_run.done("export", str(model), str(tmp_path / "plain"))
    plain = load_pretrained(tmp_path / "plain")
    assert (old.config, old.files) == (plain.config, plain.files)
    config = decode({"tasks": [{"env": "FrozenLake", "groups": 2}]}, source="test")
    files = load_pretrained(base, weights=False).files
    policy = RunPolicy(0, 0, None, {}, tokenizers.from_files(files, "base"), files, None)
    assert json.loads(export.tokenizer_files(config, policy)["generation_config.json"]) == ids


def test_the_base_of_an_adapter_is_named_as_others_find_it(tmp_path):
    cached = tmp_path / "models--org--some-model" / "snapshots" / "0a1b"
    cached.mkdir(parents=True)
    assert name_on_hub("smollm2-135m", None) == ("HuggingFaceTB/SmolLM2-135M-Instruct", None)
    assert name_on_hub(str(cached), None) == ("org/some-model", "0a1b")
    assert name_on_hub("org/other", "main") == ("org/other", "main")
    assert name_on_hub(str(tmp_path), "main") == (str(tmp_path), None)


def test_what_cannot_be_exported(runs, tmp_path):
    (model, run), new = runs, tmp_path / "new"
    assert "model.lora.rank is 0" in refused(run("fresh"), new, "--adapter")
    assert "float32" in refused(run("lora"), new, "--adapter", "--dtype", "float16")
    assert "is no run" in refused(model, new, "--adapter")
    assert "nowhere: no such folder" in refused("nowhere", new)
    assert "leave out --online" in refused(run("fresh"), new, "--online")
    assert not new.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["lora", "upper", "frozen", "whole"])
def test_every_kind_is_read_again(kind, runs, tmp_path):
    check_weights(runs[1](kind), tmp_path / "new")


@pytest.mark.nightly
def test_an_adapter_of_upper_layers_beside_its_base(runs, tmp_path):
    check_adapter(runs[1]("upper"), runs[0], tmp_path / "new", "float32")


@pytest.mark.nightly
def test_types_of_the_file(runs, tmp_path):
    exported(runs[1]("whole"), tmp_path / "new", "--dtype", "bfloat16")
    assert load_pretrained(tmp_path / "new").config.raw["torch_dtype"] == "bfloat16"
    assert (tmp_path / "new" / "model.safetensors").stat().st_size < 2 * 480 * 16 * 2 * 2
