"""Value heads: layers on a model's hidden states that predict the return before each token, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from coterie.errors import ModelError
from coterie.models.store import read_tensors

Kind = Literal["linear", "mlp"]
FILE = "value_head.safetensors"
MARFT_FILE = "value_head.pth"  # as MARFT saves the head of its critic
MARFT_LAYERS = "v_head_mlp"  # its layers: v_head_mlp1.weight … v_head_mlp3.weight
WIDTHS = (1024, 512)  # of the hidden layers of an MLP head


class ValueHead(nn.Linear):
    """A linear value head. Its weights start at zero, so that the first values are zero everywhere."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, width] → [N]. In float32 also under autocast: bfloat16 is too coarse for the differences of returns."""
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float())[:, 0]


class MlpValueHead(nn.Module):
    """Three layers with ReLU and without biases, as MARFT's critic has. The last one starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp1 = nn.Linear(width, WIDTHS[0], bias=False)
        self.mlp2 = nn.Linear(*WIDTHS, bias=False)
        self.mlp3 = nn.Linear(WIDTHS[1], 1, bias=False)
        generator = torch.Generator().manual_seed(0)  # the same in every process of a run, and on resume
        for layer in (self.mlp1, self.mlp2):
            nn.init.kaiming_normal_(layer.weight, generator=generator, nonlinearity="relu")
        nn.init.zeros_(self.mlp3.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, width] → [N]; in float32, as `ValueHead`."""
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.mlp3(self.mlp2(self.mlp1(hidden.float()).relu()).relu())
            return values[:, 0]


HEADS: dict[Kind, type[ValueHead | MlpValueHead]] = {"linear": ValueHead, "mlp": MlpValueHead}


def save_head(head: nn.Module, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.detach().float().cpu().contiguous() for name, tensor in head.state_dict().items()}, folder / FILE
    )


def load_head(head: nn.Module, folder: Path) -> None:
    """Copy a saved head, ours or MARFT's, into an existing one."""
    file, saved = _read_head(folder)
    expected = {name: list(tensor.shape) for name, tensor in head.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in saved.items()}
    if found != expected:
        layers = ", ".join(f"{name} {shape}" for name, shape in found.items())
        shapes = ", ".join(f"{name} {shape}" for name, shape in expected.items())
        raise ValueError(f"{file}: holds {layers}, and this critic has {shapes}: another model or another `head`")
    head.load_state_dict(saved)


def has_head(folder: Path) -> bool:
    return (folder / FILE).is_file() or (folder / MARFT_FILE).is_file()


def _read_head(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    file = folder / FILE
    if file.is_file():
        try:
            return file, load_file(file)
        except SafetensorError as error:
            raise ModelError(f"{file} is damaged: {error}") from error
    theirs = read_tensors(folder / MARFT_FILE)
    return folder / MARFT_FILE, {name.replace(MARFT_LAYERS, "mlp"): tensor.float() for name, tensor in theirs.items()}
