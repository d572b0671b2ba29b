"""The problems that a dry run shows, each as one line with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from coterie.check.record import DryRun, Finding, ReferenceProbe, brief
from coterie.config.problems import dotted
from coterie.rewards import TIMEOUTS
from coterie.rollout.metrics import count_failed
from coterie.statistics import mean
from coterie.types import Turn, is_correct

NO_CREDIT = 1e-6  # an advantage below this counts as zero
WIDE_GAP = 1e-2  # nats; bf16 rounding is below it, a wrong prompt or adapter above
ECHO = 0.7  # share of a reply; quotations are below it
MIN_EPISODES = 16  # with equal rewards, before that is an error
MIN_VERDICTS = 4  # equal ones, before that is a warning

Found = Iterator[Finding]


def findings(dry: DryRun) -> list[Finding]:
    """All problems that the dry run shows."""
    if dry.played and not dry.turns:
        ask = "its `run` must call roles, as in `turn = await team[role].say(prompt)`"
        return [*_failures(dry), Finding("error", f"no role took a turn in any of {len(dry.played)} episodes; {ask}")]
    played = (_silence, _rewards, _credit, _truncated, _empties, _groups, _gaps, _echoes, _verdicts, _timeouts)
    rules = (*played, hidden_references, rewarded_broken_answers, constant_roles, crashes) if dry.played else ()
    return [*_failures(dry), *_rotated_out(dry), *(finding for rule in rules for finding in rule(dry))]


def _failures(dry: DryRun) -> Found:
    failed = [episode for episode in dry.episodes if episode.error is not None]
    if failed:
        counted = count_failed(failed, len(dry.episodes))
        level: Literal["error", "warning"] = "warning" if dry.played else "error"
        yield Finding(level, f"{counted}. The first was {failed[0].id}:\n{failed[0].error}")


def _rotated_out(dry: DryRun) -> Found:
    """Policies whose turn in `algorithm.rotate` comes after the last step."""
    for policy in dry.waiting:
        yield Finding("warning", f"{policy} will not be trained: `algorithm.rotate` reaches it after the last step")


def _silence(dry: DryRun) -> Found:
    for role in dry.roles:
        if role not in dry.turns:
            yield Finding("warning", f"{role} took no turn in {len(dry.played)} episodes: the workflow did not call it")


def _rewards(dry: DryRun) -> Found:
    """Constant rewards, from which nothing can be learned."""
    constant = {name: given[0] for name, given in dry.rewards.items() if len(given) > 1 and len(set(given)) == 1}
    if len(constant) == len(dry.rewards):
        reward = constant["team"]
        hint = _reachable(dry) or "compare the answers above with `reward`"
        yield Finding("warning", f"every episode has the reward {reward:g}; {hint}")
        return
    if not dry.rule.uses_team_reward:
        constant.pop("team", None)  # it is not used
    for name, reward in constant.items():
        yield Finding("warning", f"the reward of {name.removeprefix('· ')} is constant: always {reward:g}")


def _reachable(dry: DryRun) -> str:
    """A hint if reference answers get more reward than the models' answers."""
    best = max((probe.episode.reward for probe in dry.references), default=0.0)
    if best <= max(episode.reward for episode in dry.played):
        return ""
    hint = "easier tasks, a prompt that shows the format, or more episodes may help"
    return f"the reference answer gets {best:g}, so a reward is possible: {hint}"


def _credit(dry: DryRun) -> Found:
    """Trained roles whose tokens have no advantages."""
    reached = [role for role in dry.learning if any(has_credit(turn) for turn in dry.turns[role])]
    if not reached and len(dry.played) < MIN_EPISODES and not _differ(dry):
        more = "use more --tasks and --episodes to see whether rewards differ"
        yield Finding("warning", f"{len(dry.played)} episodes are too few to know whether rewards differ; {more}")
        return
    if not reached:
        yield Finding("error", "no trained token has an advantage: all are zero or missing")
        return
    for role in dry.learning:
        if role not in reached:
            yield Finding("warning", f"no token of {role} has an advantage: all are zero or missing")


def _differ(dry: DryRun) -> bool:
    """True if the episodes of some task have different rewards."""
    tasks = dict.fromkeys(episode.task.id for episode in dry.played)
    groups = [dry.by_role([e for e in dry.played if e.task.id == task]) for task in tasks]
    return any(len(set(rewards)) > 1 for group in groups for rewards in group.values())


def has_credit(turn: Turn) -> bool:
    """True if any token of the turn has a nonzero advantage."""
    return turn.advantages is not None and bool((turn.advantages.abs() > NO_CREDIT).any())


def _truncated(dry: DryRun) -> Found:
    for role, turns in dry.turns.items():
        cut = mean([turn.stop == "length" for turn in turns])
        full = [len(turn.prompt_ids) for turn in turns if turn.stop == "length" and not turn.response_ids]
        if full:
            why = f"had no room for a token: their prompts fill the context, up to {max(full)} tokens"
            turns_of = f"{len(full)} of {len(turns)} turns of {role}"
            yield Finding("error", f"{turns_of} {why}; see engine.context, or shorten them")
        elif cut >= 0.5:
            key = dotted(("roles", role, "max_tokens"))
            hint = f"raise {key} (or the max_tokens of say() in the workflow), or ask for shorter replies"
            yield Finding("warning", f"{cut:.0%} of {role}'s turns are truncated; {hint}")


def _empties(dry: DryRun) -> Found:
    for role, turns in dry.turns.items():
        empty = sum(not turn.text.strip() for turn in turns)
        if empty:
            yield Finding("warning", f"{empty} of {len(turns)} turns of {role} are empty")


def _groups(dry: DryRun) -> Found:
    count, singletons = len(dry.group_sizes), sum(size == 1 for size in dry.group_sizes)
    if singletons:
        why = "have one member, which gets no advantage; see algorithm.group_by"
        yield Finding("warning", f"{singletons} of {count} groups {why}")
    constant = int(dry.credit["groups/constant"]) - singletons if count else 0
    if count / 2 < constant < count:  # where all are, `_credit` reports it
        more = "more episodes_per_task, or tasks that the team sometimes solves, give more to learn from"
        yield Finding("warning", f"in {constant} of {count} groups all rewards are equal; {more}")


def _timeouts(dry: DryRun) -> Found:
    killed = sum(episode.metrics.get(TIMEOUTS, 0.0) for episode in dry.everything)  # not all environments count them
    if killed:
        hint = "episodes without a score are not trained on; raise rollout.score_deadline if it needs longer"
        yield Finding("warning", f"the grader was killed {killed:g} times for taking too long: {hint}")


def _gaps(dry: DryRun) -> Found:
    for policy, gap in dry.gaps.items():
        if gap.mean > WIDE_GAP:
            wide = f"the log-prob gap of sampler and learner is {gap.mean:.2g} nats per token"
            yield Finding("warning", f"{policy}: {wide}")


def _echoes(dry: DryRun) -> Found:
    for role, share in dry.echoes.items():
        if share >= ECHO:
            hint = "unless it should copy, ask for something that is not in its prompt"
            yield Finding("warning", f"{role} repeats its prompt: {share:.0%} of its reply occurs there; {hint}")


def _verdicts(dry: DryRun) -> Found:
    for role, verdicts in dry.verdicts.items():
        readable = [one for one in verdicts if one is not None]
        if len(readable) <= len(verdicts) / 2:
            form = 'let it end with "Verdict: correct" or "Verdict: incorrect" within max_tokens'
            yield Finding("warning", f"{role} gives a verdict in {len(readable)} of {len(verdicts)} turns; {form}")
        elif len(readable) >= MIN_VERDICTS and len(set(readable)) == 1:
            word = "yes" if readable[0] else "no"
            hint = "it carries no information; ask what could be wrong first, or mix in wrong answers"
            yield Finding("warning", f"{role} says {word} in all {len(readable)} verdicts: {hint}")


Level = Literal["error", "warning"]


def hidden_references(dry: DryRun) -> Found:
    """Reference answers with a reward below 1: the workflow hides them, or the grader rejects them."""
    missed = [probe for probe in dry.references if not is_correct(probe.episode.reward)]
    if not missed:
        return
    blind = dry.graded and len(missed) == len(dry.references)
    blind = blind and not any(_beats_broken_answers(dry, probe) for probe in missed)
    level, few = _level(dry, blind)
    first = missed[0]
    count = f"of {len(missed)} of {len(dry.references)} tasks"
    if first.direct_reward > first.episode.reward:
        passed = f"it returned {brief(first.episode.answer)} for {brief(first.text)}"
        hint = "return the part that `reward` reads"
        reward = f"gets {first.direct_reward:g} when graded directly and {first.episode.reward:g} through the workflow"
        hides = "the workflow hides answers from the grader"
        yield Finding(level, f"{hides}: the reference {count} {reward}; {passed}; {hint}{few}")
    else:
        hint = "check `reward` and the answers in the data"
        seen = f"the grader got {brief(first.episode.answer)}"
        yield Finding(level, f"the reference answer {count} gets {first.episode.reward:g}, not 1: {seen}; {hint}{few}")


def _level(dry: DryRun, everywhere: bool) -> tuple[Level, str]:
    """An error if all of several tasks have a problem, else a warning; and a note if there is a single task."""
    single = everywhere and len(dry.references) == 1
    few = "; 1 task is too few to be sure, see --tasks" if single else ""
    return "error" if everywhere and not single else "warning", few


def _beats_broken_answers(dry: DryRun, probe: ReferenceProbe) -> bool:
    """True if the reference answer gets a higher reward than every broken one."""
    broken = [p.episode.reward for p in dry.probes if p.whole and p.episode.task.id == probe.episode.task.id]
    return probe.episode.reward > max(broken, default=0.0)


def rewarded_broken_answers(dry: DryRun) -> Found:
    """Broken answers with as much reward as the reference."""
    right = {probe.episode.task.id: probe.episode.reward for probe in dry.references if probe.episode.reward > 0}
    if not dry.graded:
        return
    for kind in dict.fromkeys(probe.kind for probe in dry.probes if probe.whole):
        tried = [p.episode for p in dry.probes if p.kind == kind and p.episode.task.id in right]
        paid = [episode for episode in tried if episode.error is None and episode.reward >= right[episode.task.id]]
        if paid:
            level, few = _level(dry, len(paid) == len(tried))
            reward = f"gets as much reward as the reference in {len(paid)} of {len(tried)} tasks ({paid[0].reward:g})"
            yield Finding(level, f"{kind} {reward}: the reward cannot tell them apart; choose a stricter `reward`{few}")


def constant_roles(dry: DryRun) -> Found:
    """Roles whose reward is the same for every reply, where some reference answer has a reward."""
    if not any(probe.episode.reward > 0 for probe in dry.references):
        return
    rewards = dry.by_role(dry.tried)
    still = [role for role in dry.learning if len(set(rewards[role])) == 1]
    level, few = _level(dry, len(still) == len(dry.learning))
    for role in still:
        hint = "set turn.reward depending on its replies, or use credit: team"
        constant = f"the reward of {role} is {rewards[role][0]:g} for every reply"
        yield Finding(level, f"{constant}: nothing to learn from; {hint}{few}")


def crashes(dry: DryRun) -> Found:
    """Answers on which the workflow or the grader raises: failed episodes are not trained on."""
    tried = [("the reference", probe.episode) for probe in dry.references] + [(p.kind, p.episode) for p in dry.probes]
    failed: dict[str, str] = {}  # the first of each kind of error
    for kind, episode in tried:
        if episode.error is not None:
            failed.setdefault(episode.error.strip().rpartition("\n")[2], kind)
    for error, kind in failed.items():
        hint = "failed episodes are not trained on; count unreadable answers as wrong instead"
        yield Finding("warning", f"{kind} makes the episode fail ({brief(error, 100)}): {hint}")
