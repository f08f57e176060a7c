"""Agent loops in PyTorch over Python environments, for `torch_rollout.py`."""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from python_sokoban import Episode
from torch_side import DEVICE
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer
from worker import serve


class RoomyLayer(DynamicLayer):
    """Keys and values in a buffer of the final size, because a growing buffer is copied at every token."""

    def __init__(self, length: int):
        super().__init__()
        self.length, self.kept = length, 0

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends keys and values, and returns all of them so far."""
        if not self.kept:
            shape = (*keys.shape[:2], self.length, keys.shape[3])
            self.room = keys.new_empty(shape), values.new_empty(shape)
            self.is_initialized = True
        end = self.kept + keys.shape[2]
        for room, new in zip(self.room, (keys, values)):
            room[:, :, self.kept : end] = new
        self.kept = end
        self.keys, self.values = (room[:, :, :end] for room in self.room)
        return self.keys, self.values


def roomy_cache(model: Any, length: int) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    cache.layers = [RoomyLayer(length) for _ in range(model.config.num_hidden_layers)]
    return cache


@functools.cache
def load(folder: str, dtype: str) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return model.to(DEVICE).eval(), tokenizer


def rollout(
    folder: str, dtype: str, levels: list[str], task: dict[str, Any], turns: int, tokens: int, loop: str, seed: int
) -> dict[str, Any]:
    """Plays one episode per level; `loop` is "rebuild" or "rebuild, roomy" (both a), or "cached" (b)."""
    model, tokenizer = load(folder, dtype)
    torch.manual_seed(seed)
    episodes = [Episode(level, task) for level in levels]
    began = time.perf_counter()
    with torch.inference_mode():
        if loop == "cached":
            counts = cached(model, tokenizer, episodes, turns, tokens)
        else:
            counts = rebuild(model, tokenizer, episodes, turns, tokens, roomy=loop == "rebuild, roomy")
    return {"seconds": time.perf_counter() - began, **counts}


def rebuild(model, tokenizer, episodes: list[Episode], turns: int, tokens: int, *, roomy: bool) -> dict[str, int]:
    """RAGEN's loop: every turn renders the whole chat again, tokenizes it and calls `generate`."""
    read = sampled = 0
    for _ in range(turns):
        playing = [episode for episode in episodes if not episode.done]
        if not playing:
            break
        texts = [chat(tokenizer, episode.messages) for episode in playing]
        batch = tokenizer(texts, padding=True, return_tensors="pt", add_special_tokens=False).to(DEVICE)
        batch.pop("token_type_ids", None)
        length = batch["input_ids"].shape[1]
        room = {"past_key_values": roomy_cache(model, length + tokens)} if roomy else {}
        out = model.generate(
            **batch,
            **room,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=tokenizer.pad_token_id,
        )
        assert out.shape[1] == length + tokens
        read += int(batch["attention_mask"].sum())
        sampled += len(playing) * tokens
        for episode, response in zip(playing, tokenizer.batch_decode(out[:, length:], skip_special_tokens=True)):
            episode.answer(response)
    return {"read": read, "sampled": sampled}


def cached(model, tokenizer, episodes: list[Episode], turns: int, tokens: int) -> dict[str, int]:
    """Appends tokens to the cached conversation; chunks are padded on the left and the padding is masked."""
    ends = [tokenizer.eos_token_id]
    pieces = [chat(tokenizer, episode.messages) for episode in episodes]
    cache = None
    mask = torch.zeros(len(episodes), 0, dtype=torch.long)
    read = 0
    for _ in range(turns):
        batch = tokenizer(pieces, padding=True, return_tensors="pt", add_special_tokens=False).to(DEVICE)
        read += int(batch["attention_mask"].sum())
        mask = torch.cat([mask, batch["attention_mask"]], 1)
        new = batch["input_ids"]
        # Observations have nearly the same length: reserve the size of this turn for all turns, with a margin.
        cache = cache or roomy_cache(model, turns * (new.shape[1] + tokens + 32))
        responses = []
        for _ in range(tokens):
            position = (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]
            out = model(new, attention_mask=mask, position_ids=position, past_key_values=cache, logits_to_keep=1)
            logits = out.logits[:, -1].float()
            logits[:, ends] = float("-inf")
            new = torch.multinomial(logits.softmax(-1), 1)
            responses.append(new)
            mask = torch.cat([mask, torch.ones_like(new)], 1)
        # The model has not processed the last token of a response yet: it goes before the next message.
        last, mask = new, mask[:, :-1]
        texts = tokenizer.batch_decode(torch.cat(responses, 1), skip_special_tokens=True)
        contents = [episode.answer(text) for episode, text in zip(episodes, texts)]
        pieces = [
            tokenizer.decode(token) + between(tokenizer, content) for token, content in zip(last, contents, strict=True)
        ]
        if all(episode.done for episode in episodes):
            break
    return {"read": read, "sampled": turns * tokens * len(episodes)}


def chat(tokenizer, messages: list[dict[str, str]]) -> str:
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) + "<think>"


@functools.cache
def marks(tokenizer) -> tuple[str, str]:
    """Returns the chat template's text between a response and a user message, and after the user message."""
    messages = [{"role": role, "content": f"[{role}]"} for role in ("system", "user", "assistant")]
    text = chat(tokenizer, [*messages, {"role": "user", "content": "[next]"}])
    _, _, after = text.partition("[assistant]")
    before, _, behind = after.partition("[next]")
    return before, behind


def between(tokenizer, content: str) -> str:
    before, behind = marks(tokenizer)
    return before + content + behind


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    functions: tuple[Callable[..., Any], ...] = (rollout,)
    serve({function.__name__: function for function in functions})
