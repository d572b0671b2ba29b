"""The config and the user's files as plain data, from which a worker builds its models and parts."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.config import Config
from coterie.config.load import from_tree, to_tree
from coterie.config.problems import Problems, Sources
from coterie.files import build_once, cache_folder
from coterie.training.user_files import UserFileCopies
from coterie.user_code import CODE_FOLDER


@dataclass(frozen=True)
class Shipment:
    """A config that names copies of the user's files, and these copies."""

    tree: dict[str, Any]
    files: dict[str, bytes]  # content by relative path

    def unpack(self) -> Config:
        """Write the files into this machine's cache, named by their content, and read the config."""
        content = repr(sorted(self.files.items())).encode()
        folder = cache_folder() / "cluster" / hashlib.sha256(content).hexdigest()[:16]
        tree = copy.deepcopy(self.tree)
        return from_tree(tree, Problems(Sources("config.yaml")), build_once(folder, self._write))

    def _write(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def pack(config: Config, run_folder: Path) -> Shipment:
    """The config of a run; a resumed one has its copies of the user's files in its folder."""
    copies = UserFileCopies(run_folder)
    tree = json.loads(json.dumps(copies.config(to_tree(config))))
    kept = run_folder / CODE_FOLDER
    files = {str(path.relative_to(run_folder)): path.read_bytes() for path in sorted(kept.rglob("*")) if path.is_file()}
    return Shipment(tree, files | copies.files)
