import jax
import jax.numpy as jnp
import made_run
import numpy as np
import pytest
from echo_sampler import Echo
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file
from serving import HTTP, running

from agentrl_jax.config import load_resolved
from agentrl_jax.errors import UserError
from agentrl_jax.model_server import bodies
from agentrl_jax.model_server.app import create_app
from agentrl_jax.model_server.served_model import load_served, make_sampler
from agentrl_jax.rollout import parsing
from agentrl_jax.services.environments.maze.env import SERVICE, Maze
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.setup import build
from agentrl_jax.setup.service_tasks import Services
from agentrl_jax.text.conversation import messages_of
from agentrl_jax.text.grammar import ResponseGrammar, compile_grammar
from agentrl_jax.text.tokenizer import load_small

ASKED = [{"role": "user", "content": "Up?"}]


def asked(url, path="chat/completions", **options):
    question = {"messages": ASKED} if path == "chat/completions" else {"prompt": "Up?"}
    return HTTP.post(f"{url}/v1/{path}", json=question | options)


def test_several_prompts_are_answered_in_their_order(model):
    """As LangChain, litellm and lm-eval send them; each of `n` responses, those of the first prompt first."""
    sampler, texts = Echo(), ["Up", "Up", "Left?", "Left?"]
    ids = list(map(model.tokenizer.encode, texts))
    with running(create_app(model, sampler, Limits(), max_waiting=8)) as url:

        def ask(prompt, **options):
            return asked(url, "completions", **{"prompt": prompt, "return_token_ids": True, "seed": 3} | options)

        for prompt in (texts[::2], ids[::2]):
            answer = ask(prompt, n=2, max_tokens=5, logprobs=0).json()
            choices = answer["choices"]
            assert [(choice["index"], choice["text"]) for choice in choices] == list(enumerate(texts))
            assert [choice["prompt_token_ids"] for choice in choices] == ids
            assert [len(choice["logprobs"]["token_logprobs"]) for choice in choices] == list(map(len, ids))
            assert answer["usage"]["prompt_tokens"] == len(ids[0]) + len(ids[2])
            assert answer["usage"]["completion_tokens"] == sum(map(len, ids))
        assert [(each.seed, each.choice) for each in sampler.requests[:4]] == [(3, 0), (3, 1)] * 2
        assert len(ask(["Up"]).json()["choices"]) == len(ask("Up").json()["choices"]) == 1
        assert [each.max_tokens for each in sampler.requests[-2:]] == [16, 16]
        for prompt in ([], [""], [[]], ["Up", [4]], [[480]], "", ["U"] * 9):
            assert ask(prompt).status_code == 400, prompt
        assert "prompt 1 is ''" in ask(["Up", ""]).json()["error"]["message"]
        assert ask(["U", "Up " * 60]).json()["error"]["code"] == "context_length_exceeded"


NOTHING = {
    "user": "me", "store": False, "metadata": {}, "service_tier": "auto", "parallel_tool_calls": True,
    "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_logprobs": 0, "best_of": 1, "echo": False,
    "suffix": "", "tools": [], "tool_choice": "none", "functions": [], "function_call": "auto", "stream_options": None,
    "response_format": {"type": "text"}, "modalities": ["text"], "reasoning_effort": None, "min_p": 0.0,
    "repetition_penalty": 1.0, "length_penalty": 1.0, "ignore_eos": False, "min_tokens": 0, "use_beam_search": False,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "stop_token_ids": [], "n": 1, "stop": [],
    "add_special_tokens": False, "add_generation_prompt": True, "chat_template_kwargs": {}, "prompt_cache_key": "k",
}  # fmt: skip
"""Fields that OpenAI's, LangChain's, litellm's and vLLM's clients send, with values that change nothing."""
CHANGING = {
    "presence_penalty": 0.5, "logit_bias": {"5": 1}, "min_p": 0.1, "tools": [{"type": "function"}], "min_tokens": 1,
    "tool_choice": "required", "ignore_eos": True, "stop_token_ids": [3], "echo": True, "best_of": 2,
    "response_format": {"type": "json_object"}, "reasoning_effort": "high", "use_beam_search": True,
    "chat_template_kwargs": {"enable_thinking": False}, "parallel_tool_calls": 2,
}  # fmt: skip


def test_fields_that_change_nothing_are_taken_and_others_refused_by_name():
    plain = {"model": "tiny", "temperature": 0.5, "seed": 3}
    for body, question in ((bodies.ChatBody, {"messages": ASKED}), (bodies.CompletionBody, {"prompt": "Up?"})):
        assert body(**plain, **question, **NOTHING) == body(**plain, **question, stop=[])
    for name, value in CHANGING.items():
        with pytest.raises(ValidationError, match=rf"{name} is .*not supported; expected"):
            bodies.ChatBody(messages=ASKED, **{name: value})


def test_logits_that_are_not_finite_and_errors_of_the_server_have_the_form_of_the_api(model, monkeypatch):
    with running(create_app(model, Echo(logprob=float("nan")), Limits(), max_waiting=8)) as url:
        for path in ("chat/completions", "completions"):
            for stream, logprobs in ((False, False), (False, True), (True, True)):
                answer = asked(url, path, logprobs=logprobs, stream=stream)
                assert answer.status_code == 500
                assert "not finite" in answer.json()["error"]["message"]
    monkeypatch.setattr(bodies, "chat_answer", None)
    with running(create_app(model, Echo(), Limits(), max_waiting=8)) as url:
        answer = asked(url)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    file = made_run.write_model(tmp_path / "nan") / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] = np.inf
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"nan/model\.safetensors: model\.norm\.weight"):
        load_served(str(tmp_path / "nan"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run.write_run(tmp_path_factory.mktemp("runs") / "run", prompt="stop_at_answer: true")


def test_the_format_of_a_run_is_that_of_its_prompts(run):
    """Compact prompts of the shipped tokenizer: no ends of messages, and an answer tag before the response."""
    found, config = load_served(str(run)), load_resolved(run / "config.yaml")
    ids = made_run.first_prompt(config, build.build_compiled_env(config, found.tokenizer))
    without_tag = ids[: -len(found.tokenizer.encode("<answer>"))]
    messages = messages_of(found.tokenizer, without_tag)
    assert found.opening == "<answer>"
    assert found.prompt_ids(messages) == ids
    assert load_served(str(run), opening="none").prompt_ids(messages) == without_tag


@pytest.mark.parametrize(("think", "opening"), [("false", "Action:"), ("true", "Thought:")])
def test_the_format_of_a_run_on_a_service_is_that_of_its_prompts(tmp_path, monkeypatch, think, opening):
    """Its prompts end with the beginning of a response to a service."""
    tasks = "tasks: [{env: maze, groups: 2, items: 0-9, held_out: 10-14, validation: 15-19}]\nenv: {url: local}"
    monkeypatch.setattr(made_run, "RUN", made_run.RUN.replace("tasks: [{env: FrozenLake, groups: 2}]", tasks))
    folder = made_run.write_run(tmp_path / "run", prompt=f"style: chat, think: {think}")
    found, config = load_served(str(folder)), load_resolved(folder / "config.yaml")
    services = Services(config, lambda: tmp_path)
    ids = made_run.first_prompt(config, services.batched_env(found.tokenizer, held_out=True), np.arange(1))
    services.close()
    shown = [("system", SERVICE.instruction), ("user", Maze().reset(10).observation)]
    assert (found.opening, found.prompt_ids(shown)) == (opening, ids)


def test_the_server_of_a_run_names_it_and_its_step_and_ends_responses_at_the_answer(run, model):
    """In conversations, whose format the server knows; a completion goes on."""
    found, sampler = load_served(str(run), name="policy"), Echo()
    assert found.grammar == ResponseGrammar(actions=(), think=False, forced=True)
    assert load_served(str(run), opening="none").grammar == ResponseGrammar(actions=(), think=False, forced=False)
    assert model.grammar is None
    assert len(make_sampler(found, context=64, max_tokens=8, max_batch=1).grammars) == 1
    assert make_sampler(model, context=64, max_tokens=8, max_batch=1).grammars == ()
    with running(create_app(found, sampler, Limits(), max_waiting=8)) as url:
        (listed,) = HTTP.get(f"{url}/v1/models").json()["data"]
        answer, streamed, _ = asked(url), asked(url, stream=True), asked(url, "completions")
    assert [each.to_answer for each in sampler.requests] == [True, True, False]
    assert (listed["id"], listed["run"], listed["step"]) == ("policy", "run", 7)
    assert answer.json()["system_fingerprint"] == "run@7"
    assert '"system_fingerprint":"run@7"' in streamed.text.replace(" ", "")


@pytest.mark.parametrize(("think", "forced"), [(False, True), (False, False), (True, True)])
def test_an_answer_closes_where_that_of_the_run_does(think, forced):
    """The format without the names of actions; `</answer>` outside of the block closes nothing."""
    tokenizer, task = load_small(), jnp.zeros(1, jnp.int32)
    before = "</answer> so</think><answer>" if think else "" if forced else "<answer>"
    ids = jnp.array(tokenizer.encode(f"{before}Up || Left</answer> and"), jnp.int32)
    tables = (compile_grammar(ResponseGrammar(actions=(), think=think, forced=forced), tokenizer),)

    def step(state, token):
        state = parsing.advance(tables, task, state, token[None])
        return state, parsing.closed(tables, task, state)[0]

    closed = jax.lax.scan(step, parsing.start(tables, task), ids)[1].tolist()
    assert tokenizer.decode(ids[: closed.index(True) + 1].tolist()) == f"{before}Up || Left</answer>"
