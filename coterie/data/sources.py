"""The data sets that Coterie knows by name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from coterie.data.anli import ANLI
from coterie.data.deepcoder import DEEPCODER
from coterie.data.gsm8k import GSM8K
from coterie.data.hotpotqa import HOTPOTQA
from coterie.data.humaneval import HUMANEVAL
from coterie.data.math import AIME2024, DEEPSCALER, MATH500
from coterie.data.mbpp import MBPP
from coterie.data.r2egym import R2EGYM
from coterie.data.row import Raw, Source
from coterie.data.swe import SWE
from coterie.data.swebench import SWEBENCH

if TYPE_CHECKING:
    from coterie.types import Split

MATHS = (GSM8K, DEEPSCALER, AIME2024, MATH500)
READING = (ANLI, HOTPOTQA)
CODE = (DEEPCODER, MBPP, HUMANEVAL, SWE, SWEBENCH, R2EGYM)
SOURCES = {source.name: source for source in (*MATHS, *READING, *CODE)}


def from_hub(source: Source, wanted: Split) -> Iterator[tuple[int, Raw]]:
    """The rows of a split from the Hugging Face hub, numbered from 1."""
    if not source.hubs:
        raise ValueError(f"{source.name}: these rows are your own; --source FILE says where they are")
    try:
        from datasets import load_dataset
    except ImportError:
        raise ImportError(
            f"{source.name} from the hub needs the datasets package: pip install -e '.[hub]',"
            " or name a jsonl, JSON or Parquet file"
        ) from None
    parts = [(hub, split) for hub in source.hubs for split, ours in hub.splits.items() if ours == wanted]
    loaded = (load_dataset(hub.path, hub.config, split=split) for hub, split in parts)
    yield from enumerate(map(dict, chain.from_iterable(loaded)), 1)
