"""Folders of TFDS: conversations written as one, and read again.

A folder is written completely or not at all, and has one split, `train`. Its metadata have the digest of the
conversations, what was left out of them, and the size and the SHA-256 of every file, which are compared when it is
opened. Folders of others are read too if their features are those of `AgentrlTrajectories`.

Only `array_record` is read: TFDS ignores sub-splits of parquet without a word, and needs TensorFlow for the others.
"""

import contextlib
import hashlib
import io
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.errors import UserError, refusals, shortened
from agentrl_jax.models.io.safetensors_files import atomic_folder, refuse_nonempty, write_json
from agentrl_jax.offline.conversations import Conversation, Data
from agentrl_jax.offline.messages import conversation_of
from agentrl_jax.strict_json import parse_object

INFO, FEATURES, METADATA = "dataset_info.json", "features.json", "metadata.json"
_WHY = {
    "parquet": "of which TFDS ignores sub-splits: a validation slice would have all rows",
    "tfrecord": "which needs TensorFlow",
}
_LARGEST = 2**24
"""Bytes of a JSON file at most."""


def write_folder(data: Data, folder: Path) -> None:
    """Writes conversations into a new folder, for `tfds.builder_from_directory`.

    Raises:
        UserError: TFDS is not installed, or the folder is not empty or cannot be written.
    """
    builders = import_builders()
    metadata = {"digest": data.digest, "name": data.name, "dropped": dict(data.dropped)}
    build(builders.AgentrlTrajectories, {"train": map(_example, data.conversations)}, metadata, folder)


def build(
    builder: Any, examples: Mapping[str, Iterable[Mapping[str, Any]]], metadata: dict[str, Any], folder: Path
) -> None:
    """Writes what a builder makes of examples, and the hashes of its files."""
    with refusals():
        refuse_nonempty(folder)
        with atomic_folder(folder, {}, {}) as temporary:
            # TFDS prints its progress, and has no setting for all of it.
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                made = builder(examples, metadata, data_dir=str(temporary / "build"))
                made.download_and_prepare()
            versioned = Path(made.data_dir)
            files = {file.name: _size_and_hash(file) for file in versioned.iterdir() if ".array_record" in file.name}
            for file in list(versioned.iterdir()):
                file.rename(temporary / file.name)
            shutil.rmtree(temporary / "build")
            write_json(temporary / METADATA, metadata | {"files": files})


def read_folder(folder: Path, split: str = "") -> Data:
    """The conversations of a split, which may be left out where there is one only; they are read when asked for.

    Raises:
        UserError: TFDS is not installed, there is no such split, the format or the features are others, or a file is
            missing, cut off or not the one that was written.
    """
    form = _json(folder / INFO).get("fileFormat", "tfrecord")
    if form != "array_record":
        why = _WHY.get(str(form), "which is not supported")
        raise UserError.at(folder, f"has records of {shortened(form)}, {why}; expected array_record", form)
    builders = import_builders()
    # Compared before TFDS reads it: it imports the modules that the file names.
    if _json(folder / FEATURES) != builders.features_json():
        raise UserError.at(folder / FEATURES, "has other features; expected those of conversations: write them again")
    metadata = _json(folder / METADATA) if (folder / METADATA).is_file() else {}
    with _refused(folder):
        splits = dict(builders.tfds.builder_from_directory(folder).info.splits)
    names = list(splits)
    if not split and len(names) == 1:
        split = names[0]
    if split not in names:
        raise UserError.of("split", split, f"of {folder}; expected one of {', '.join(names)}")
    with _refused(folder / INFO):
        files = [Path(file) for file in splits[split].filepaths]
        shards = list(zip(files, map(int, splits[split].shard_lengths), strict=True))
    if not sum(length for _, length in shards):
        raise UserError.at(folder / INFO, f"has no rows in the split {split}; expected at least one")
    _check_files(folder, shards, metadata)
    rows = _Rows(folder, split, shards)
    data = Data.of(rows, f"{folder.name} {split}", _dropped(metadata))
    if metadata.get("digest", data.digest) != data.digest:
        raise UserError.at(folder, f"has conversations with the digest {data.digest[:16]}, which its metadata deny")
    return data


class _Rows(Sequence[Conversation]):
    """The rows of a split."""

    def __init__(self, folder: Path, split: str, shards: Sequence[tuple[Path, int]]):
        """`shards` are the files and how many rows each has."""
        self._folder, self._split, self._shards = folder, split, shards
        self._source: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_source": None}

    def __len__(self) -> int:
        return sum(length for _, length in self._shards)

    def __getitem__(self, index: Any) -> Any:
        place = range(len(self))[index]
        if isinstance(place, range):
            return [self[i] for i in place]
        if self._source is None:
            builder = import_builders().tfds.builder_from_directory(self._folder)
            with _refused(self._folder):
                self._source = builder.as_data_source(split=self._split)
        file, row = self._place(place)
        with _refused(file):
            found = self._source[place]
        return _conversation(found, f"{file}: row {row}")

    def _place(self, index: int) -> tuple[Path, int]:
        """The file of a row, and its number there."""
        shard = 0
        while index >= self._shards[shard][1]:
            index -= self._shards[shard][1]
            shard += 1
        return self._shards[shard][0], index + 1


def _example(conversation: Conversation) -> dict[str, Any]:
    known = conversation.reward, conversation.success
    return {
        "messages": [{"role": m.role, "content": m.content, "loss": m.loss} for m in conversation.messages],
        "task": conversation.task,
        "item": conversation.item,
        "reward": math.nan if known[0] is None else known[0],
        "success": -1 if known[1] is None else int(known[1]),
    }


def _conversation(found: Mapping[str, Any], where: str) -> Conversation:
    messages, reward, success = found["messages"], float(found["reward"]), int(found["success"])
    try:
        columns = [[text.decode() for text in messages[key]] for key in ("role", "content")]
        task, item = found["task"].decode(), found["item"].decode()
    except UnicodeDecodeError as error:
        raise UserError.at(where, f"is no UTF-8 ({error}); write the folder again") from error
    row: dict[str, Any] = {"task": task, "item": item}
    row["messages"] = [
        {"role": role, "content": content, "loss": bool(loss)}
        for role, content, loss in zip(*columns, messages["loss"])
    ]
    row["reward"] = None if math.isnan(reward) else reward
    row["success"] = {-1: None, 0: False, 1: True}.get(success, success)
    return conversation_of(row, where)


def _check_files(folder: Path, shards: Sequence[tuple[Path, int]], metadata: Mapping[str, Any]) -> None:
    """Refuses a file that is missing, or not the one that was written; in folders of others, rows are counted."""
    from array_record.python import array_record_module

    known = metadata.get("files")
    for file, length in shards:
        if not file.is_file() or file.parent.resolve() != folder.resolve():
            raise UserError.at(file, "no such file in the folder; restore it, or write the folder again")
        if isinstance(known, dict):
            if known.get(file.name) != _size_and_hash(file):
                raise UserError.at(file, "is not the file that was written: its size or hash is another; restore it")
            continue
        with _refused(file):
            reader = array_record_module.ArrayRecordReader(str(file))
            count = reader.num_records()
            reader.close()
        if count != length:
            raise UserError.at(file, f"has {count} records, expected {length}; restore it", count)


def _size_and_hash(file: Path) -> dict[str, Any]:
    with open(file, "rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _dropped(metadata: Mapping[str, Any]) -> dict[str, int]:
    found = metadata.get("dropped", {})
    return {key: count for key, count in found.items() if isinstance(count, int)} if isinstance(found, dict) else {}


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise UserError.at(file, "no such file; expected a folder of TFDS")
    with open(file, "rb") as stream, refusals():
        return parse_object(stream.read(_LARGEST), str(file))


@contextlib.contextmanager
def _refused(place: Path) -> Iterator[None]:
    """TFDS and `array_record` raise many kinds of errors for damaged files, without their names."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError.at(
            place, f"cannot be read ({shortened(error)}); restore it, or write the folder again"
        ) from error


def import_builders() -> Any:
    """The module `tfds_builders`.

    Raises:
        UserError: TFDS is not installed.
    """
    try:
        from agentrl_jax.offline import tfds_builders
    except ImportError as error:
        why = "is not installed; run pip install 'agentrl_jax[data]', or use .jsonl"
        raise UserError.at("tensorflow_datasets", f"{why} ({shortened(error)})") from error
    return tfds_builders
