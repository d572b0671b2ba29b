"""What the commands print: the plan of a run, tables of measurements, dialogues before and after."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coterie.analysis.replay import Verdict
from coterie.config import Config, Policy
from coterie.console import BARS, table, under
from coterie.evaluation.evaluate import Report
from coterie.evaluation.single_agent_baseline import SingleAgent
from coterie.statistics import mean
from coterie.types import Episode, Metrics, Turn

HEIGHT = 5  # lines of the learning curve
MOST_BARS = 9  # so that it fits into 80 characters


def plan(config: Config) -> Iterator[RenderableType]:
    """Who plays which role on what, and how much is played."""
    rows = [
        {
            "role": role if len(seat.policies) == 1 else f"{role}, turn {nth}",
            "policy": policy,
            "model": config.policies[policy].model,
            "learns": how_it_learns(config.policies[policy]),
            "max tokens": config.sampling_of(role).max_tokens,
        }
        for role, seat in config.roles.items()
        for nth, policy in enumerate(seat.policies, 1)
    ]
    amount = f"{config.steps} steps × {config.tasks_per_step} tasks × {config.episodes_per_task} episodes"
    yield table(f"{config.name}: {amount}, {config.algorithm.name}", rows)
    yield Text(f"  workflow {config.workflow.name} · env {config.env.name} · reward {config.reward.name}\n")


def how_it_learns(policy: Policy) -> str:
    if policy.frozen:
        return "frozen"
    rank = f"LoRA of rank {policy.lora.rank}" if policy.lora else "the whole model"
    return f"{rank if policy.adapter is None else f'the adapter {policy.adapter}'}, lr {policy.lr:g}"


def learning_curve(evaluations: Mapping[int, float]) -> Iterator[RenderableType]:
    """A small plot of the held-out reward, a bar for each evaluation; nothing where there are not two to compare.

        1.00 ┤
             │                 ▆▆▆▆
             │          ████   ████
             │   ▅▅▅▅   ████   ████
        0.00 ┤   ████   ████   ████
                 0.31   0.60   0.75
    after step      0      8     16
    """
    finite = {step: reward for step, reward in evaluations.items() if math.isfinite(reward)}
    if len(finite) < 2:
        return
    shown = _spread(list(finite.items()), MOST_BARS)
    low, high = min(0.0, *finite.values()), max(1.0, *finite.values())
    heights = [round((reward - low) / (high - low) * HEIGHT * len(BARS)) for _, reward in shown]
    plot = Text("held-out reward in the course of training\n")
    for row in reversed(range(HEIGHT)):
        mark = {HEIGHT - 1: f"{high:.2f} ┤", 0: f"{low:.2f} ┤"}
        plot.append(f"{mark.get(row, '│'):>10}")
        plot.append("".join(f"   {_cell_of_bar(height - row * len(BARS)) * 4}" for height in heights) + "\n", "cyan")
    plot.append(" " * 10 + "".join(f"{reward:>7.2f}" for _, reward in shown) + "\n", "bold")
    plot.append(f"{'after step':>10}" + "".join(f"{step:>7}" for step, _ in shown) + "\n", "dim")
    yield plot


def _cell_of_bar(eighths: int) -> str:
    """One character of a bar that reaches so many eighths above the character's foot."""
    return " " if eighths <= 0 else BARS[min(eighths, len(BARS)) - 1]


def _spread(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most so many of them, evenly spread, the first and the last included."""
    count = min(len(points), most)
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]


def next_steps(folder: Path, step: int, steps: int) -> Text:
    """Where the run stands, and the commands that go on from there."""
    again = "" if step < steps else f" steps={2 * steps}"
    commands = {
        f"coterie eval {folder}": "how good the team is, beside one agent alone",
        f"coterie train --resume {folder}{again}": "go on from here",
    }
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}   {purpose}" for command, purpose in commands.items()]
    return Text("\n".join([f"{folder}: {step} of {steps} steps done", *lines]))


def evaluation(title: str, reports: Mapping[str, Report]) -> Table:
    """One row for each way of answering the same tasks."""
    return table(title, [{"answered by": name, **_numbers(report.metrics)} for name, report in reports.items()])


def _numbers(metrics: Metrics) -> dict[str, float]:
    passes = {name: value for name, value in metrics.items() if name.startswith("pass@")}
    return {"reward": metrics["reward"], **passes, "tokens": metrics["tokens"], "failed": int(metrics["failed"])}


def single_agents(config: Config, agents: Mapping[str, SingleAgent]) -> Iterator[Text]:
    """What each single agent is: for an adapter the untrained model, for a model that is trained whole itself."""
    for name, agent in agents.items():
        policy = config.policies[agent.policy]
        who = f"{policy.model} without an adapter" if policy.lora else f"the policy {agent.policy}"
        asked = "the prompt of the role that begins" if agent.workflow.prompts else "the bare question"
        yield Text(f"  {name}: {who}, asked {asked}, in at most {agent.player.sampling.max_tokens} tokens")
    paid = "of as many as the team's tokens pay for; if fewer than three, of three in a third of the tokens each"
    yield Text(f"  the majority is of the better one's answers, {paid}\n")


def unequal(reports: Mapping[str, Report], within: float = 0.1) -> Iterator[Text]:
    """Which of the others took more or fewer tokens than the team, which comes first."""
    team, *others = [(name, report.metrics["tokens"]) for name, report in reports.items()]
    times = {name: tokens / max(team[1], 1.0) for name, tokens in others}
    far = [f"{name} {ratio:.2f} ×" for name, ratio in times.items() if abs(ratio - 1) > within]
    if far:
        yield Text(f"  not at equal tokens; the team's are 1: {', '.join(far)}\n", style="yellow")


def by_role(metrics: Metrics) -> Table:
    """What each role earned, how much it said, and how often it was cut off."""
    columns = {name: under(f"{name}/", metrics) for name in ("reward", "tokens", "truncated")}
    return table(
        "", [{"role": role} | {name: column[role] for name, column in columns.items()} for role in columns["tokens"]]
    )


def first_failure(reports: Mapping[str, Report]) -> Iterator[RenderableType]:
    """The traceback of the first episode that failed, if any did."""
    failed = [(name, e) for name, one in reports.items() for e in one.episodes if e.error is not None]
    for name, episode in failed[:1]:
        yield Text(f"The first that failed, {episode.id} of {name}:\n{episode.error}")


def dialogues(before: Report, after: Report, count: int) -> Iterator[RenderableType]:
    """What the team said to a few tasks, untrained and trained, side by side; where the outcome changed, first."""
    pairs = [pair for pair in zip(before.episodes, after.episodes, strict=True) if pair[0].repeat == 0]
    better = sum(early.reward < late.reward for early, late in pairs)
    worse = sum(early.reward > late.reward for early, late in pairs)
    told = f"{better} of {len(pairs)} held-out tasks went better than before training, {worse} worse"
    yield Text(f"\n{told}; some of these, then others:")
    for early, late in sorted(pairs, key=lambda pair: pair[0].reward == pair[1].reward)[:count]:
        yield dialogue(early, late)


def dialogue(before: Episode, after: Episode) -> Table:
    task = before.task
    title = task.prompt if task.answer is None else f"{task.prompt}\nanswer: {task.answer}"
    shown = Table(title=Text(visible(title)), title_justify="left", box=box.SIMPLE_HEAD, expand=True)
    for column in ("", "before", "after"):
        shown.add_column(column, ratio=3 if column else 1)
    for early, late in zip_longest(before.turns, after.turns):
        shown.add_row(Text((early or late).role, "cyan"), _said(early), _said(late))
    shown.add_row(Text("reward", "dim"), *[Text(_outcome(episode), "bold") for episode in (before, after)])
    return shown


def _said(turn: Turn | None) -> Text:
    return Text("" if turn is None else visible(turn.text) + (" …" if turn.stop == "length" else ""))


def visible(text: str) -> str:
    """Text that a terminal can be trusted with: an untrained model may well say the code that clears the screen."""
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def _outcome(episode: Episode) -> str:
    return f"{episode.reward:.2f}" if episode.error is None else f"failed: {episode.error_kind}"


def verdicts(title: str, judged: Sequence[Verdict], most: int) -> Iterator[RenderableType]:
    """Per role how credit changes, then the turns for which it changes most."""
    roles = dict.fromkeys(one.turn.role for one in judged)
    yield table(title, [_by_role(role, [one for one in judged if one.turn.role == role]) for role in roles])
    changed = sorted(judged, key=_change, reverse=True)[:most]
    yield table("turns that change most", [verdict(one) for one in changed if _change(one) > 0])


def verdict(one: Verdict) -> dict[str, str | float | int | None]:
    """One turn's change as plain data."""
    return {
        "step": one.step,
        "episode": one.episode.id,
        "role": one.turn.role,
        "turn": one.turn.round,
        "reward": one.reward,
        "reward now": one.episode.reward,
        "advantage": one.before,
        "advantage now": one.after,
    }


def _change(one: Verdict) -> float:
    return abs((one.after or 0.0) - (one.before or 0.0))


def _by_role(role: str, judged: Sequence[Verdict]) -> dict[str, str | float]:
    return {
        "role": role,
        "turns": len(judged),
        "reward": mean([one.reward for one in judged]),
        "reward now": mean([one.episode.reward for one in judged]),
        "|advantage|": mean([abs(one.before or 0.0) for one in judged]),
        "|advantage| now": mean([abs(one.after or 0.0) for one in judged]),
        "mean change": mean([_change(one) for one in judged]),
        "sign turned": f"{mean([one.turned for one in judged]):.0%}",
        "left out now": f"{mean([one.after is None for one in judged]):.0%}",
    }
