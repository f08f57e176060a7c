"""Hook of MkDocs: a notebook becomes a page of its text, its code, and the outputs that are stored in it."""

import base64
import json
import re
from pathlib import PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Puts `NAME.md`, and `NAME_N.png` for every figure, in the place of each `NAME.ipynb`."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        stem = PurePosixPath(file.src_uri).with_suffix("")
        parts: list[str] = []
        figures: list[str] = []
        for cell in json.loads(file.content_string)["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] != "code":
                parts.append(source)
                continue
            parts.append(_fenced(source, ".python"))
            for output in cell["outputs"]:
                text, png = _text(output), output.get("data", {}).get("image/png")
                if png:
                    name = f"{stem.name}_{len(figures) + 1}.png"
                    figures.append(name)
                    content = base64.b64decode("".join(png))
                    files.append(File.generated(config, str(stem.with_name(name)), content=content))
                    parts.append(f"![Figure drawn by the code above]({name})")
                elif text.strip():
                    parts.append(_fenced(text, ".text .output"))
        files.append(File.generated(config, f"{stem}.md", content="\n\n".join(parts) + "\n"))
        files.remove(file)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to a notebook, which a reader of the repository opens, lead to its page here."""
    return re.sub(r"\.ipynb([)#])", r".md\1", markdown)


def _text(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    return "".join(output.get("text") or data.get("text/plain") or "")


def _fenced(text: str, classes: str) -> str:
    body = text.rstrip("\n")
    return f"````{{{classes}}}\n{body}\n````"
