"""The output of `coterie check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.rule import Rule
from rich.text import Text

from coterie.check.findings import has_credit
from coterie.check.record import DryRun, Finding
from coterie.cli.report import visible
from coterie.console import table, under
from coterie.statistics import mean
from coterie.types import Episode, Turn

Row = dict[str, str | float]


def dry_run(dry: DryRun) -> Iterator[RenderableType]:
    """The results of a dry run, from the rendered prompts to the time of a step."""
    for role, (prompt, reply, stop) in dry.dialogue.items():
        yield Rule(f"{role}: prompt", align="left")
        yield Text(visible(prompt))
        yield Rule(f"{role}: reply (stop: {stop})", align="left")
        yield Text(visible(reply))
    if dry.played:
        yield Rule()
        yield table(f"rewards of {len(dry.played)} episodes", [_spread(name, r) for name, r in dry.rewards.items()])
        yield table("turns", [_turns(dry, role, turns) for role, turns in dry.turns.items()])
        yield from _answers(dry)
        yield from _groups(dry)
        gaps = [{"policy": p, "mean": f"{gap.mean:.1e}", "max": f"{gap.max:.1e}"} for p, gap in dry.gaps.items()]
        yield table("log-prob gap of sampler and learner", gaps)
        tokens, seconds = dry.tokens_per_step, dry.seconds_per_step
        yield Text(f"  a step: {tokens:,.0f} sampled tokens, at most about {seconds:.2g} s here\n")


def problems(found: Sequence[Finding]) -> Text:
    """The findings, errors first, under their count."""
    count = f"{len(found) or 'no'} problem{'' if len(found) == 1 else 's'}"
    ordered = sorted(found, key=lambda finding: finding.level != "error")
    return Text("\n".join([count, *[f"  {finding.level}: {visible(finding.text)}" for finding in ordered]]))


def _spread(name: str, rewards: Sequence[float]) -> Row:
    zero = sum(reward == 0 for reward in rewards) / len(rewards)
    counts = {"distinct": f"{len(set(rewards))} of {len(rewards)}", "zero": f"{zero:.0%}"}
    return {"reward of": name, **_range(rewards), **counts}


def _range(rewards: Sequence[float]) -> Row:
    return {"min": float(min(rewards)), "mean": float(mean(rewards)), "max": float(max(rewards))}


def _turns(dry: DryRun, role: str, turns: Sequence[Turn]) -> Row:
    tokens = sum(len(turn.response_ids) for turn in turns)
    all_tokens = sum(len(turn.response_ids) for some in dry.turns.values() for turn in some)
    judged = [verdict for verdict in dry.verdicts[role] if verdict is not None] if role in dry.verdicts else []
    return {
        "role": role,
        "turns": len(turns),
        "tokens": tokens / len(turns),
        "of all": f"{tokens / max(all_tokens, 1):.0%}",
        "truncated": f"{mean([turn.stop == 'length' for turn in turns]):.0%}",
        "empty": f"{mean([not turn.text.strip() for turn in turns]):.0%}",
        "with credit": f"{mean([has_credit(turn) for turn in turns]):.0%}",
        **({"echo": f"{dry.echoes[role]:.0%}"} if role in dry.echoes else {}),
        **({"says yes": f"{sum(judged)} of {len(judged)}"} if role in dry.verdicts else {}),
    }


def _answers(dry: DryRun) -> Iterator[RenderableType]:
    """The rewards of the probes."""
    by_reply: dict[str, list[Episode]] = {"the reference": [probe.episode for probe in dry.references]}
    for probe in dry.probes:
        if probe.whole:
            by_reply.setdefault(probe.kind, []).append(probe.episode)
    rows = [{"all roles reply": kind, **_rewards(episodes)} for kind, episodes in by_reply.items() if episodes]
    if rows:
        yield table("reference and broken answers", rows)
        roles = dry.by_role(dry.tried)
        yield table("rewards that roles can get", [{"role": r, **_range(e)} for r, e in roles.items()])


def _rewards(episodes: Sequence[Episode]) -> Row:
    rewards = [episode.reward for episode in episodes]
    failed = sum(episode.error is not None for episode in episodes)
    return {"tasks": len(episodes), **_range(rewards), "failed": failed}


def _groups(dry: DryRun) -> Iterator[RenderableType]:
    if dry.group_sizes:
        kinds = {kind: int(count) for kind, count in under("groups/", dry.credit).items()}
        smallest, largest = min(dry.group_sizes), max(dry.group_sizes)
        sizes = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
        yield table("groups", [{"groups": len(dry.group_sizes), "turns in each": sizes, **kinds}])
