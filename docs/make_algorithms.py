"""Writes docs/algorithms.md from what the algorithms say of themselves: `python docs/make_algorithms.py`."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from coterie.algorithms.base import Algorithm
from coterie.config.registry import BUILTIN, Kind, find

PAGE = Path(__file__).with_name("algorithms.md")

HEAD = """# Algorithms

Made by `python docs/make_algorithms.py` from the classes themselves. An algorithm is chosen by its name,
`algorithm: grpo`, or by name and options, `algorithm: {name: grpo, drop_constant: true}`. All of them have
OPTIONS.
`coterie schema` has their types. How well they do on games with a known optimum: [games](games.md).
"""

CREDIT = """# Credit

What each turn earned, out of the team's reward and the turns' own, is decided before the algorithm sees it:
`credit: team`, or another of these.
"""

AROUND = """# Around the algorithms

Examples are parts of a config whose roles are `reasoner` and `actor`, each with a policy of its own.

## critics

PPO and its kin need values. Without `critics` a head on each policy's own trunk says them and learns with it. A critic
is a model of its own, a LoRA with a head or (`lora: null`) a whole one, for the roles that it names or for all. `sees:
joint` shows it the task and all that was said; MAPPO and HAPPO need that, and make one where none is given.

```yaml
algorithm: {name: ippo, value_fits: 2, warmup: 5}
critics:
  notes: {roles: [reasoner], model: demo}
  answers: {roles: [actor], model: demo, lr: 1.0e-3, sees: joint}
```

## encoder

VDN and QMIX see messages as vectors that never learn: by default the mean hidden state of the first policy's model
without its adapter, of another model if one is named, or what `encode(texts)` of a class of your own gives.

```yaml
algorithm: {name: qmix, warmup: 20}
encoder: {name: hidden, model: demo}
```

## opponents

Self-play against the past: every so many steps a snapshot of each policy's adapter is kept, and in a share of the steps
snapshots play all seats but one. Their turns are environment. With `rae` a role has an average for each opponent.

```yaml
algorithm: rae
credit: own
opponents: {share: 0.5, every: 10, keep: 8}
```

## alarm

Notices a run that has collapsed, says so once on the console and logs `alarm/collapse`: a role nearly always says the
same, a policy has no entropy left, or what is earned does not change at all, for so many steps on end.

```yaml
alarm: {steps: 10, same: 0.99, entropy: 0.01}
```

## rotate

Agent by agent: one policy trains, for so many steps, while the others stay as they are; then the next. With an interval
so long that each is done learning, that is iterated best response. Critics of their own always learn.

```yaml
algorithm: {name: grpo, rotate: 25}
```

## rotate_turns

Turn by turn: only turns of one round are learned from, for so many steps, then those of the next. With a policy for
each round of a role (`roles: {actor: {policy: [first, later]}}`) that trains one at a time. The rewards of turns that
nobody learns from, of another round or sampled with other weights (`stale` in the metrics), move no baseline.

```yaml
algorithm: {name: grpo, rotate_turns: 10}
```

## algorithm.roles

GRPO and its kin can compare each role's turns in a way of its own: other peers, another baseline or scale, another way
to add up its tokens. What is not named is as for all; such a role is compared with no other.

```yaml
algorithm:
  name: grpo
  roles:
    actor: {baseline: others, scale: none, drop_cut: true}
```
"""

SOURCES = """# Second sources

`tests/laws/test_second_sources.py` holds the formulas against numbers that other people's code gives for the same
inputs, or against a paper's equation worked out by hand.

| formula | second source |
|---|---|
| GAE by token and by turn, whitening | verl `compute_gae_advantage_return`; MARFT `TokenBuffer`, `ActionBuffer` |
| GRPO, Dr. GRPO, RLOO, REINFORCE++ | verl `compute_…_outcome_advantage`; TRL `GRPOTrainer`; arXiv 2501.03262 |
| PPO's clip, dual clip, DAPO, GSPO, token weights | verl `compute_policy_loss_…` and `agg_loss`, gradients too |
| truncated importance weights, k1, k2, k3, entropy | verl; TRL's k3; `torch.distributions` |
| value loss, clipped and Huber | verl `compute_value_loss`; PyTorch `huber_loss` |
| AT-GRPO, Dr. MAS | PettingLLMs `compute_advantage`; DrMAS `group_by_agent_id` |
| MAGRPO, RAE | CoMLRL `MAGRPOTrainer`; SPIRAL `prepare_trajectories` |
| HAPPO | HARL `OnPolicyHARunner` and `HAPPO` |
| VDN, QMIX and their targets | PyMARL `VDNMixer`, `QMixer`, `QLearner` |
| CORY | arXiv 2410.06101, section 3 |
| MaPoRL's scores and incentives | MAPoRL `score_rule` and `bonus_rule` |
| Shapley shares | the glove game |

Where they differ:

- GRPO adds up tokens as the mean over all of them, like DAPO and verl. DeepSeekMath and TRL take the mean over answers
  of token means, which is `reduce: turn`. A group of one gets 0; in verl it gets its reward.
- REINFORCE++ whitens over all roles together; `peers: [batch, role]` whitens each role by itself.
- k3 is not capped; verl caps it at 10. Log-ratios are clamped to ±20 in both.
- RAE's average moves once a step by the mean of the step, and not game by game, so that the order of games does not
  matter. A role's first step is held against itself.
- HAPPO's factor is the product over the other roles' turns of the episode, not of one time step, within `max_factor`.
- The target of VDN and QMIX takes what was said next, and no maximum over actions: texts cannot be enumerated.
- MaPoRL's `last` is the last round that was reached. α2 and α3 reward peers who become right, at every turn but the
  last; in the released trainer they have the opposite sign, and no effect at the first turn. Peers of whom just half
  are right count as wrong; there as neither.

No second implementation was found of the influence bonus (MAVERL), of the gains by confidence and of VDN by token:
these are tested against their definitions alone.
"""


def page() -> str:
    shared = ", ".join(_option(field) for field in fields(Algorithm))
    parts = [HEAD.replace("OPTIONS", shared), *_entries("algorithm"), CREDIT, *_entries("credit"), AROUND, SOURCES]
    return "\n".join(parts)


def _entries(kind: Kind) -> list[str]:
    named = {name: find(kind, name) for name in BUILTIN[kind]}
    return [_entry(name, cls, _parent(cls, list(named.values()))) for name, cls in named.items()]


def _parent(cls: Any, named: list[Any]) -> Any:
    """The nearest ancestor that has an entry, else what all share."""
    ancestors = [ancestor for ancestor in cls.__mro__[1:] if is_dataclass(ancestor)]
    return next((ancestor for ancestor in ancestors if ancestor in named), ancestors[-1])


def _entry(name: str, cls: Any, parent: Any) -> str:
    text = inspect.cleandoc(cls.__doc__)
    own = ", ".join(_option(field) for field in _own_fields(cls, parent))
    return f"## {name}\n\n{text}\n" + (f"\nOptions of its own, or with another default: {own}.\n" if own else "")


def _own_fields(cls: Any, parent: Any) -> list[Field[Any]]:
    """Fields that its parent does not have, or has with another default."""
    before = {f.name: f.default for f in fields(parent)}
    return [f for f in fields(cls) if f.name not in before or before[f.name] != f.default]


def _option(field: Field[Any]) -> str:
    plain = field.default is not MISSING
    shown = list(field.default) if isinstance(field.default, tuple) else field.default
    words = {None: "null", True: "true", False: "false"}
    value = words[shown] if shown is None or isinstance(shown, bool) else shown
    return f"`{field.name}: {value}`" if plain else f"`{field.name}`"


if __name__ == "__main__":
    PAGE.write_text(page())
