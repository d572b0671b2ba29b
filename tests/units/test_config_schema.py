"""The schema, the page of keys and the hints say what the settings say."""

from __future__ import annotations

import importlib.util
import itertools
import re
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from coterie.config import Lora, dump, load, yamltree
from coterie.config.hints import HERE
from coterie.config.problems import Problems, Sources
from coterie.config.registry import BUILTIN, find, options_of
from coterie.config.schema import descriptions, schema
from tests.configs import GOOD, VARIANTS, checked

DOCS = Path(__file__).parents[2] / "docs"


PPO = {"const": "ppo"}


RECIPES = [
    *sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml")),
    *sorted((Path(__file__).parents[2] / "recipes/maporl").glob("*.yaml")),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_passes_and_fits_the_schema(recipe: Path) -> None:
    searches = "corpus:" in recipe.read_text()
    checked(recipe, [f"workflow.corpus={recipe}"] if searches else [])  # its data is yet to be prepared
    assert fits(known_schema(), yamltree.read(recipe.read_text(), Problems(Sources())))


def test_every_hint_names_an_option_that_exists() -> None:
    known = keys(known_schema())
    for kind, names in BUILTIN.items():
        known |= {f"{kind}.{option}" for name in names for option in options_of(find(kind, name))}
    for key in itertools.chain(*(hint.partition(", ")[0].split(" and ") for hint in HERE.values())):
        assert key in known, key


def test_every_builtin_part_has_options_that_the_schema_lists() -> None:
    listed = known_schema()["$defs"]
    for kind, names in BUILTIN.items():
        spelled = {form["properties"]["name"]["const"]: form for form in listed[kind]["oneOf"] if "const" in str(form)}
        for name in names:
            options = options_of(find(kind, name))
            assert set(spelled[name]["properties"]) == {"name", *options}
            required = {option for option, about in options.items() if about.default is MISSING}
            assert set(spelled[name]["required"]) == {"name", *required}


@pytest.mark.parametrize("overrides", VARIANTS)
def test_what_loads_fits_the_schema(good: Path, overrides: list[str]) -> None:
    assert fits(known_schema(), yamltree.read(dump(load(good, overrides)), Problems(Sources())))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("steps:", "step:"),
        ("steps: 20", "steps: 0"),
        ("rank: 8", "rank: x"),
        ("group_by", "grup_by"),
        ("workflow: chain", ""),
        ("workflow: chain", "workflow: chian"),
        ("[task, role]", "[tusk]"),
        ("max_tokens: 32", "max_tokens: -1"),
    ],
)
def test_what_does_not_load_does_not_fit_the_schema(old: str, new: str) -> None:
    assert fits(known_schema(), yamltree.read(GOOD, Problems(Sources())))
    assert not fits(known_schema(), yamltree.read(GOOD.replace(old, new), Problems(Sources())))


def keys(node: dict[str, Any], prefix: str = "") -> set[str]:
    """Every dotted key of a schema; a name that the user chooses is `<name>`, a part has a `name`."""
    found: set[str] = {prefix.removesuffix(".")}
    for name, child in node.get("properties", {}).items():
        found |= keys(child, f"{prefix}{name}.")
    if isinstance(node.get("additionalProperties"), dict):
        found |= keys(node["additionalProperties"], f"{prefix}<name>.")
    for form in node.get("anyOf", []):
        found |= keys(form, prefix)
    return found | ({f"{prefix}name"} if "$ref" in node else set())


known_schema = cache(schema)  # which takes a fifth of a second to make


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def fits(node: dict[str, Any], data: Any, root: dict[str, Any] | None = None) -> bool:
    """Whether data is valid under the part of JSON schema that ours uses."""
    root = node if root is None else root
    if "$ref" in node:
        return fits(root["$defs"][node["$ref"].rsplit("/", 1)[1]], data, root)
    rules = {
        "type": lambda kind: fits_type(kind, data),
        "enum": lambda values: data in values,
        "const": lambda value: data == value,
        "pattern": lambda pattern: isinstance(data, str) and re.search(pattern, data) is not None,
        "minimum": lambda bound: data >= bound,
        "maximum": lambda bound: data <= bound,
        "exclusiveMinimum": lambda bound: data > bound,
        "required": lambda names: all(name in data for name in names),
        "properties": lambda known: all(fits(known[key], data[key], root) for key in data if key in known),
        "additionalProperties": lambda rest: all(
            rest is not False and (rest is True or fits(rest, data[key], root))
            for key in data
            if key not in node.get("properties", {})
        ),
        "items": lambda item: all(fits(item, each, root) for each in data),
        "anyOf": lambda forms: any(fits(form, data, root) for form in forms),
        "oneOf": lambda forms: sum(fits(form, data, root) for form in forms) == 1,
    }
    if "type" in node and not fits_type(node["type"], data):
        return False
    return all(rule(node[name]) for name, rule in rules.items() if name in node)


def fits_type(kind: str, data: Any) -> bool:
    if kind in ("number", "integer"):
        return isinstance(data, int if kind == "integer" else (int, float)) and not isinstance(data, bool)
    return isinstance(data, TYPES[kind])


def maker() -> Any:
    """The script that writes the page of all keys."""
    spec = importlib.util.spec_from_file_location("make_configuration", DOCS / "make_configuration.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_keys_says_what_the_settings_say() -> None:
    assert (DOCS / "configuration.md").read_text() == maker().page(), "run: python docs/make_configuration.py"


def test_no_key_lacks_a_sentence() -> None:
    assert maker().undescribed() == []


def test_the_schema_describes_keys_with_the_sentences_beside_their_fields() -> None:
    described = known_schema()
    assert described["properties"]["steps"]["description"] == "Training steps."
    ppo = next(one for one in described["$defs"]["algorithm"]["oneOf"] if PPO in one.get("properties", {}).values())
    assert ppo["properties"]["lam_turn"]["description"] == "GAE's λ from a turn to the next."


class Sibling(Lora):
    rank: int = 4
    both: int = 0  # trailing comments win


def test_a_sentence_is_the_comment_beside_a_field_or_above_it_and_is_inherited() -> None:
    found = descriptions(Sibling)
    assert found["rank"] == "Rank of the two factors." and found["both"] == "Trailing comments win."
    assert found["targets"].startswith("Layers with an adapter, by the end of their names")
