"""The registry of datasets for `coterie data prepare`; add a new dataset here."""

from __future__ import annotations

from coterie.data.anli import ANLI
from coterie.data.deepcoder import DEEPCODER
from coterie.data.gsm8k import GSM8K
from coterie.data.hotpotqa import HOTPOTQA
from coterie.data.humaneval import HUMANEVAL
from coterie.data.math import AIME2024, DEEPSCALER, MATH500
from coterie.data.mbpp import MBPP
from coterie.data.r2egym import R2EGYM
from coterie.data.swe import SWE
from coterie.data.swebench import SWEBENCH
from coterie.data.tinygsm import TINYGSM

MATHS = (GSM8K, TINYGSM, DEEPSCALER, AIME2024, MATH500)
READING = (ANLI, HOTPOTQA)
CODE = (DEEPCODER, MBPP, HUMANEVAL, SWE, SWEBENCH, R2EGYM)
SOURCES = {source.name: source for source in (*MATHS, *READING, *CODE)}
