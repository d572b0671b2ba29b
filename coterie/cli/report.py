"""The output of the commands: the plan of a run, evaluation tables, learning curve, dialogues."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coterie.analysis.replay import ReplayedTurn
from coterie.config import Config, Policy
from coterie.console import BARS, reward_owner, table, under, visible
from coterie.evaluation.evaluate import Report
from coterie.evaluation.single_agent_baseline import SingleAgent
from coterie.rewards.verifier import uses_verifier
from coterie.statistics import mean
from coterie.types import Episode, Metrics, Turn

HEIGHT = 5  # lines of the learning curve
MOST_BARS = 9  # so that the plot fits into 80 columns


def plan(config: Config) -> Iterator[RenderableType]:
    """The policy and model of each role, and the size of the run."""
    rows = [
        {
            "role": role if len(settings.policies) == 1 else f"{role}, turn {nth}",
            "policy": policy,
            "model": config.policies[policy].model,
            "training": training_mode(config.policies[policy]),
            "max tokens": config.sampling_of(role).max_tokens,
        }
        for role, settings in config.roles.items()
        for nth, policy in enumerate(settings.policies, 1)
    ]
    amount = f"{config.steps} steps × {config.tasks_per_step} tasks × {config.episodes_per_task} episodes"
    yield table(f"{config.name}: {amount}, {config.algorithm.name}", rows)
    yield Text(f"  workflow {config.workflow.name} · env {config.env.name} · reward {config.reward.name}\n")
    if uses_verifier(config.reward):
        yield Text(
            "  rewards are scores of a verifier: a higher reward is not a higher accuracy, "
            "which is logged only where the reward has `labels` and tasks have answers\n",
            style="yellow",
        )


def training_mode(policy: Policy) -> str:
    if policy.by_text:
        return "a person" if policy.human else "remote"
    if policy.frozen:
        return "frozen"
    rank = f"LoRA, rank {policy.lora.rank}" if policy.lora else "the whole model"
    return f"{rank if policy.adapter is None else f'the adapter {policy.adapter}'}, lr {policy.lr:g}"


def learning_curve(evaluations: Mapping[int, float], owner: str = "") -> Iterator[RenderableType]:
    """A bar chart of the held-out reward per evaluation; nothing with fewer than two. `owner`: `reward_owner`'s prefix.

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
    plot = Text(f"held-out {owner}reward during training\n")
    for row in reversed(range(HEIGHT)):
        mark = {HEIGHT - 1: f"{high:.2f} ┤", 0: f"{low:.2f} ┤"}
        plot.append(f"{mark.get(row, '│'):>10}")
        plot.append("".join(f"   {_cell_of_bar(height - row * len(BARS)) * 4}" for height in heights) + "\n", "cyan")
    plot.append(" " * 10 + "".join(f"{reward:>7.2f}" for _, reward in shown) + "\n", "bold")
    plot.append(f"{'after step':>10}" + "".join(f"{step:>7}" for step, _ in shown) + "\n", "dim")
    yield plot


def _cell_of_bar(eighths: int) -> str:
    """One character of a bar, filled to so many eighths."""
    return " " if eighths <= 0 else BARS[min(eighths, len(BARS)) - 1]


def _spread(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most so many points, evenly spread, with the first and the last."""
    count = min(len(points), most)
    return [points[round(i * (len(points) - 1) / (count - 1))] for i in range(count)]


def next_steps(folder: Path, config: Config, step: int, finished: bool) -> Text:
    """The state of the run, and the commands to continue."""
    budget, again = config.max_sampled_tokens, ""
    if step >= config.steps:
        again = f" steps={2 * config.steps}" if config.epochs is None else f" epochs={2 * config.epochs}"
    elif finished and budget is not None:
        again = f" max_sampled_tokens={2 * budget}"
    commands = {f"coterie train --resume {folder}{again}": "train further"}
    if config.eval.tasks:  # otherwise there is nothing to evaluate
        commands = {f"coterie eval {folder}": "evaluate the team, beside single-agent baselines"} | commands
    width = max(map(len, commands))
    lines = [f"  {command:<{width}}   {purpose}" for command, purpose in commands.items()]
    return Text("\n".join([f"{folder}: {step} of {config.steps} steps done", *lines]))


def evaluation(title: str, reports: Mapping[str, Report]) -> Table:
    """One row per report."""
    return table(title, [{"answered by": name, **_numbers(report.metrics)} for name, report in reports.items()])


def _numbers(metrics: Metrics) -> dict[str, float]:
    """The columns of a report. A reward that is a verifier's score is marked; pass@k too, if there are no labels."""
    owner = reward_owner(metrics)
    judge = "" if "accuracy" in metrics else owner
    passes = {f"{judge}{name}": value for name, value in metrics.items() if name.startswith("pass@")}
    auc = {"AUC": metrics["verifier/auc"]} if "verifier/auc" in metrics else {}
    sizes = {"tokens": metrics["tokens"], "failed": int(metrics["failed"])}
    return {f"{owner}reward": metrics["reward"], **passes, **auc, **sizes}


def single_agents(config: Config, agents: Mapping[str, SingleAgent], reports: Mapping[str, Report]) -> Iterator[Text]:
    """The model and the prompt of each single agent, and which agent's answers the majority baseline uses. The model is
    the base without its adapter, or the policy itself if all its weights are trained."""
    for name, agent in agents.items():
        policy = config.policies[agent.policy]
        model = f"{policy.model} without an adapter" if policy.lora else f"the policy {agent.policy}"
        prompt = "the prompt of the first role" if agent.workflow.prompts else "the bare question"
        yield Text(f"  {name}: {model}, with {prompt}, at most {agent.player.sampling.max_tokens} tokens")
    if any(name.startswith("majority") for name in reports):
        yield Text("  majority: of the better one's answers, as many as the team's tokens pay for\n")
    elif agents:
        yield Text("  no majority: the team's tokens pay for one answer of the better one\n")


def unequal(reports: Mapping[str, Report], within: float = 0.1) -> Iterator[Text]:
    """The baselines that used more or fewer tokens than the team, which comes first."""
    team, *others = [(name, report.metrics["tokens"]) for name, report in reports.items()]
    times = {name: tokens / max(team[1], 1.0) for name, tokens in others}
    far = [f"{name} {ratio:.2f} ×" for name, ratio in times.items() if abs(ratio - 1) > within]
    if far:
        yield Text(f"  unequal tokens, relative to the team: {', '.join(far)}\n", style="yellow")


def by_role(metrics: Metrics) -> Table:
    """Reward, response length and truncation per role."""
    columns = {name: under(f"{name}/", metrics) for name in ("reward", "tokens", "truncated")}
    rows = [{"role": role} | {name: column[role] for name, column in columns.items()} for role in columns["tokens"]]
    return table("", rows)


def first_failure(reports: Mapping[str, Report]) -> Iterator[RenderableType]:
    """The traceback of the first failed episode, if any."""
    failed = [(name, e) for name, one in reports.items() for e in one.episodes if e.error is not None]
    for name, episode in failed[:1]:
        yield Text(f"The first failed episode, {episode.id} of {name}:\n{episode.error}")


def dialogues(before: Report, after: Report, count: int) -> Iterator[RenderableType]:
    """A few episodes before and after training, side by side; those with a changed reward first."""
    pairs = [pair for pair in zip(before.episodes, after.episodes, strict=True) if pair[0].repeat == 0]
    better = sum(early.reward < late.reward for early, late in pairs)
    worse = sum(early.reward > late.reward for early, late in pairs)
    changes = f"{better} of {len(pairs)} held-out tasks improved, {worse} got worse"
    yield Text(f"\n{changes}; some of these, then others:")
    for early, late in sorted(pairs, key=lambda pair: pair[0].reward == pair[1].reward)[:count]:
        yield dialogue(early, late)


def dialogue(before: Episode, after: Episode) -> Table:
    task = before.task
    title = task.prompt if task.answer is None else f"{task.prompt}\nanswer: {task.answer}"
    shown = Table(title=Text(visible(title)), title_justify="left", box=box.SIMPLE_HEAD, expand=True)
    for column in ("", "before", "after"):
        shown.add_column(column, ratio=3 if column else 1)
    for early, late in zip_longest(before.turns, after.turns):
        shown.add_row(Text((early or late).role, "cyan"), _reply(early), _reply(late))
    shown.add_row(Text("reward", "dim"), *[Text(_outcome(episode), "bold") for episode in (before, after)])
    return shown


def _reply(turn: Turn | None) -> Text:
    return Text("" if turn is None else visible(turn.text) + (" …" if turn.stop == "length" else ""))


def _outcome(episode: Episode) -> str:
    return f"{episode.reward:.2f}" if episode.error is None else f"failed: {episode.error_kind}"


def replayed_turns(title: str, turns: Sequence[ReplayedTurn], most: int) -> Iterator[RenderableType]:
    """The change of advantages per role, then the turns that change most."""
    roles = dict.fromkeys(one.turn.role for one in turns)
    yield table(title, [_by_role(role, [one for one in turns if one.turn.role == role]) for role in roles])
    changed = sorted(turns, key=_change, reverse=True)[:most]
    yield table("turns that change most", [replayed_turn(one) for one in changed if _change(one) > 0])


def replayed_turn(one: ReplayedTurn) -> dict[str, str | float | int | None]:
    """The change of one turn as plain data."""
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


def _change(one: ReplayedTurn) -> float:
    return abs((one.after or 0.0) - (one.before or 0.0))


def _by_role(role: str, turns: Sequence[ReplayedTurn]) -> dict[str, str | float]:
    return {
        "role": role,
        "turns": len(turns),
        "reward": mean([one.reward for one in turns]),
        "reward now": mean([one.episode.reward for one in turns]),
        "|advantage|": mean([abs(one.before or 0.0) for one in turns]),
        "|advantage| now": mean([abs(one.after or 0.0) for one in turns]),
        "mean change": mean([_change(one) for one in turns]),
        "sign changed": f"{mean([one.sign_changed for one in turns]):.0%}",
        "excluded now": f"{mean([one.after is None for one in turns]):.0%}",
    }
