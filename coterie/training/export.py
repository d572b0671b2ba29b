"""A run's policies for use elsewhere: merged models in Hugging Face layout, or adapters in PEFT layout, with a card."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from peft import PeftModel
from transformers import GenerationConfig

from coterie.config import Policy, load
from coterie.errors import UserError
from coterie.files import atomic_folder, reporting_write_errors, verify_checksums
from coterie.models.chat import Chat, template_of
from coterie.models.progress_bars import no_progress_bars
from coterie.models.store import load_end_ids, load_model, load_tokenizer, resolve
from coterie.training import checkpoint
from coterie.training.checkpoint import policy_folder
from coterie.training.model_card import model_card


class NothingToExport(UserError, ValueError):
    """A run without a policy of the requested kind."""


def export_policies(run: Path, out: Path, which: str | None, merge: bool) -> dict[str, Path]:
    """Write a folder per policy and a model card into the new folder `out`; returns the folders by policy.

    `merge`: whole models, adapters merged into their base; else the adapters alone. Policies whose whole model is
    frozen have nothing of their own, and are left out.
    """
    saved = checkpoint.find(run, which or "latest")
    verify_checksums(saved)
    config = load(run / "config.yaml")
    exported = [name for name, policy in config.policies.items() if _is_exported(policy, merge)]
    if not exported:
        kinds = "all of its policies are frozen models" if merge else "it trained whole models; --merge exports them"
        raise NothingToExport(f"{run}: no policy has an adapter: {kinds}")
    names = {name: quote(name, safe=" ") for name in exported}
    with reporting_write_errors(out), atomic_folder(out) as folder:
        for name in exported:
            write = write_merged if merge else write_adapter
            write(config.policies[name], policy_folder(saved, name), folder / names[name])
        (folder / "README.md").write_text(model_card(run, config, saved, names, merge))
    return {name: out / names[name] for name in exported}


def _is_exported(policy: Policy, merge: bool) -> bool:
    return policy.lora is not None or (merge and not policy.frozen)


def write_adapter(policy: Policy, saved: Path, out: Path) -> None:
    """The adapter in PEFT layout, as the checkpoint has it."""
    shutil.copytree(saved, out)


def write_merged(policy: Policy, saved: Path, out: Path) -> None:
    """One model that plain transformers loads: the adapter's weights are added to those of the base.

    The generation config has the end tokens alone: a penalty in the base's would change the trained distribution.
    """
    base = resolve(policy.model) if policy.lora is not None else saved
    model: Any = load_model(base, torch.float32, "sdpa")
    dtype = model.config.dtype if isinstance(model.config.dtype, torch.dtype) else torch.float32
    if policy.lora is not None:
        with warnings.catch_warnings():
            # peft 0.21 reads a name of transformers' that 5.23 deprecates.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            model = PeftModel.from_pretrained(model, str(saved)).merge_and_unload()
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = template_of(tokenizer)
    ends = sorted(Chat(tokenizer, load_end_ids(base)).end_ids)
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[0])
    with no_progress_bars():
        model.to(dtype).save_pretrained(out)
    tokenizer.save_pretrained(out)


def push(folder: Path, repository: str, public: bool) -> str:
    """Upload an exported folder to the Hugging Face hub, creating the repository if necessary; returns its URL."""
    api = HfApi()
    try:
        with no_progress_bars():
            url = api.create_repo(repository, private=not public, exist_ok=True)
            api.upload_folder(folder_path=folder, repo_id=url.repo_id, commit_message="Export from Coterie")
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        kept = f"{folder} is complete; `hf auth login` logs in"
        raise UserError(f"--push {repository}: the upload failed ({reason}); {kept}") from error
    return str(url)
