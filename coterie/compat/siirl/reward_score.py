"""The scorers of `siirl.utils.reward_score` (those of verl), under the same names, backed by Coterie's graders.

Each returns what siiRL's returns: a number, a tuple or a dictionary. They block their caller, as siiRL's do, and may be
called from any thread. If the grader fails, they raise; a failure is never a score of 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from coterie.rewards import make_grader
from coterie.rewards.answer_extraction import boxed

DEADLINE = 30.0  # seconds for one answer
MARKER = "####"  # before the answer of a GSM8K solution
FENCE = "```python"
# The data sources that `default_compute_score` knows, by the module that scores them.
SOURCES = {
    "gsm8k": ("openai/gsm8k",),
    "math": (
        "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500",
        "agentica-org/DeepScaleR-Preview-Dataset", "AIME2024", "AIME2025", "AIME24", "AIME25",
    ),
    "math_dapo": ("math_dapo", "math", "math_dapo_reasoning"),
    "prime_math": (
        "numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc", "numina_cn_k12",
        "numina_olympiads",
    ),
    "prime_code": ("codecontests", "apps", "codeforces", "taco"),
    "search_r1_like_qa_em": (
        "searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa", "searchR1_2wikimultihopqa",
        "searchR1_musique", "searchR1_bamboogle",
    ),
}  # fmt: skip


def graded(reward: str, answer: Any, truth: Any, **options: Any) -> float:
    """The reward of an answer, from a grader that is a coroutine."""
    grader = make_grader(reward, options, DEADLINE)
    with ThreadPoolExecutor(1) as thread:  # with an event loop of its own: the caller's may be running
        return thread.submit(asyncio.run, grader(answer, truth)).result()


def math_score(solution_str: str, ground_truth: str) -> float:
    """1 if the last `\\boxed{}` equals the reference; an answer without a box is wrong."""
    return graded("math", solution_str, ground_truth, strict=True)


def is_equiv(str1: str, str2: str, verbose: bool = False) -> bool:
    return graded("math", f"\\boxed{{{str1}}}", str2, strict=True) == 1.0


def last_boxed_only_string(string: str) -> str | None:
    content = boxed(string)
    return None if content is None else f"\\boxed{{{content}}}"


def remove_boxed(s: str) -> str:
    content = boxed(s)
    if content is None:
        raise ValueError(f"no \\boxed{{}} in {s!r:.80}")
    return content


def batch_score(data_sources: Any, solution_strs: Sequence[str], ground_truths: Sequence[str], extra_infos: Any) -> Any:
    return [math_score(answer, truth) for answer, truth in zip(solution_strs, ground_truths, strict=True)]


def math_verify_score(model_output: str, ground_truth: str, timeout_score: float = 0) -> float:
    return graded("math", model_output, ground_truth)


def prime_math_score(model_output: str, ground_truth: str) -> tuple[bool, bool, str]:
    """Whether it is right, whether it has a box, and what is in the box."""
    content = boxed(str(model_output))
    return graded("math", str(model_output), str(ground_truth)) == 1.0, content is not None, content or ""


def math_dapo_score(
    solution_str: str, ground_truth: str, strict_box_verify: bool = False, pause_tokens_index: Any = None
) -> dict[str, Any]:
    right = graded("math", solution_str, ground_truth, strict=strict_box_verify) == 1.0
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": boxed(solution_str)}


def gsm8k_score(
    solution_str: str, ground_truth: str, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """`score` if the number after the last `####` is the reference's; with `method="flexible"` the last number."""
    _, marker, answer = solution_str.rpartition(MARKER)
    if method == "strict" and not marker:
        return 0.0
    return score if graded("number", answer.split("\n")[0] if marker else answer, ground_truth) == 1.0 else format_score


def prime_code_score(completion: str, test_cases: Any, continuous: bool = False) -> tuple[float, list[Any]]:
    """Whether the program passes all tests, or with `continuous` the share; it runs in the sandbox. No metadata.

    The program is the last one after "```python", also in the middle of a line: hooks put an agent's name before it.
    """
    _, fence, program = completion.rpartition(FENCE)
    answer = f"{FENCE}\n{program.partition('```')[0]}\n```" if fence else completion
    return graded("code", answer, test_cases, partial=continuous), []


def qa_score(
    solution_str: str, ground_truth: Any, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """`score` if `<answer>…</answer>` equals one of the references."""
    if "</answer>" not in solution_str:
        return 0.0
    target = ground_truth["target"] if isinstance(ground_truth, Mapping) else ground_truth
    return score if graded("qa", solution_str, target, measure="exact") == 1.0 else format_score


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **unused: Any
) -> float | dict[str, Any]:
    """The score by the name of the data set, as `SOURCES` lists them."""
    module = next((name for name, sources in SOURCES.items() if data_source in sources), None)
    module = "math_dapo" if module is None and data_source.startswith("aime") else module
    if module is None:
        known = ", ".join(source for sources in SOURCES.values() for source in sources)
        raise NotImplementedError(f"no score for the data source {data_source!r}; there are {known}")
    score = SCORES[module]["compute_score"](solution_str, ground_truth)
    return score if isinstance(score, dict) else float(score[0] if isinstance(score, tuple) else score)


# The names of each module `siirl.utils.reward_score.…`.
SCORES: dict[str, dict[str, Callable[..., Any]]] = {
    "math": {
        "compute_score": math_score,
        "is_equiv": is_equiv,
        "last_boxed_only_string": last_boxed_only_string,
        "remove_boxed": remove_boxed,
    },
    "math_batch": {"compute_score_batched": batch_score},
    "math_verify": {"compute_score": math_verify_score},
    "prime_math": {"compute_score": prime_math_score},
    "math_dapo": {"compute_score": math_dapo_score},
    "gsm8k": {"compute_score": gsm8k_score},
    "prime_code": {"compute_score": prime_code_score},
    "search_r1_like_qa_em": {"compute_score": qa_score},
}
