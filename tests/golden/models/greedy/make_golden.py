"""Writes `golden.json`: the greedy responses of torch and transformers in the conversations below.

    agentrl export smollm2-135m FOLDER
    python tests/golden/models/greedy/make_golden.py FOLDER

The second command needs torch and transformers but not this package; their versions are stored with the responses.
Everything is computed in float32 on the CPU.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

TOKENS = 64
"""Maximum number of tokens in a response."""

CONVERSATIONS = [
    (None, ["What is the capital of Australia, and why is it not Sydney?"]),
    (None, ["Hi"]),
    (None, ["?"]),
    (None, ["Write a Python function that returns the n-th Fibonacci number."]),
    (None, ["def median(values):\n    ordered = sorted(values)\n\nFinish this function."]),
    (None, ["List five fruits, one a line, with their colors."]),
    (None, ["1. Boil water\n2. Add pasta\n3. \n\nWhat is missing in step 3?"]),
    (None, ["Quelle est la capitale de la France ?"]),
    (None, ["Erkläre in zwei Sätzen, warum der Himmel blau ist."]),
    (None, ["¿Cuántos días tiene un año bisiesto?"]),
    (None, ["用一句话介绍北京。"]),
    (None, ["What is 17 * 23? Show the steps."]),
    (None, ["Translate to French: 'The cat sleeps on the warm roof.'"]),
    (None, ["Write a haiku about rain 🌧️ and a robot."]),
    (None, ['Answer in JSON with the keys "name" and "age": Maria is 31 years old.']),
    (None, ["####\n#@ #\n#$ #\n#. #\n####\n\n@ is the player, $ a box and . its target. Up, Down, Left or Right?"]),
    (None, ["  Fix the   spelling:\tI recieve teh lettre yesterdey.\n"]),
    ("You are a pirate. Answer in one short sentence.", ["Where do you hide your gold?"]),
    (None, ["Name a planet with rings.", "How many moons does it have?"]),
    ("Answer with a single word.", ["Is ice lighter than water?", "And is iron?", "Why?"]),
    (None, ["Fix the   spelling:\tI recieve teh lettre yesterdey.\n"]),
]
"""A system message or None, and the user messages; each message follows the model's response to the previous one."""


def converse(tokenizer, model, system: str | None, messages: list[str]) -> list[dict]:
    """Turns of a conversation: ids of the prompt and of the response without its end token, `ended`, text and margin.

    The margin is the smallest difference between the logits of the likeliest and the second likeliest token.
    """
    spoken = [{"role": "system", "content": system}] if system else []
    turns = []
    for message in messages:
        spoken.append({"role": "user", "content": message})
        form = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        prompt = tokenizer.apply_chat_template(spoken, **form)
        options = {"do_sample": False, "max_new_tokens": TOKENS, "pad_token_id": tokenizer.eos_token_id}
        with torch.no_grad():
            found = model.generate(**prompt, **options, output_logits=True, return_dict_in_generate=True)
        asked = prompt["input_ids"][0].tolist()
        response = found.sequences[0].tolist()[len(asked) :]
        best = torch.cat(found.logits).topk(2).values
        ended = response[-1] == tokenizer.eos_token_id
        response = response[:-1] if ended else response
        text = tokenizer.decode(response)
        margin = round(float((best[:, 0] - best[:, 1]).min()), 6)
        turns.append({"prompt": asked, "response": response, "ended": ended, "margin": margin, "text": text})
        spoken.append({"role": "assistant", "content": text})
    return turns


def main(folder: str) -> None:
    """Writes the file and prints the responses."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    conversations = []
    for system, messages in CONVERSATIONS:
        turns = converse(tokenizer, model, system, messages)
        conversations.append({"system": system, "messages": messages, "turns": turns})
        for message, turn in zip(messages, turns):
            print(f"{turn['margin']:8.4f}  {message[:40]!r} -> {turn['text'][:60]!r}", flush=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    golden = {"tokens": TOKENS, "versions": versions, "conversations": conversations}
    text = json.dumps(golden, ensure_ascii=False, indent=None).replace('{"system"', '\n{"system"')
    Path(__file__).with_name("golden.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
