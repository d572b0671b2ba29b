"""The viewer's server: what it answers, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from coterie.cli.app import app as coterie
from coterie.episode_files import EpisodeFile
from coterie.view.app import App
from coterie.view.listing import Listing, NoRuns
from coterie.view.report import write_report
from coterie.view.run_folder import RunFolder
from coterie.web.server import OwnPagesOnly
from tests.hangs import HANG
from tests.view_runs import KINDS, write_comparison, write_games, write_run, write_verifier

LOCAL = "http://127.0.0.1:8800"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        write_run(folder / kind, kind, seed=len(kind))
    return folder


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    return TestClient(OwnPagesOnly(App(Listing([runs])).asgi()), base_url=LOCAL)


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_viewer_imports_no_torch_and_no_transformers() -> None:
    code = "import sys, coterie.cli.view, coterie.view.app, coterie.view.report"
    code += "; sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG).returncode == 0


def test_the_list_says_where_runs_stand_and_how_they_differ(client: TestClient) -> None:
    found = {run["name"]: run for run in get(client, "/api/runs")}
    assert set(found) == set(KINDS) and found["chain"]["state"] == "finished"
    assert (found["chain"]["step"], found["chain"]["steps"]) == (4, 4)
    assert found["debate"]["differs"]["seed"] == 6 and "steps" not in found["debate"]["differs"]


@pytest.mark.parametrize(
    ("query", "holds"),
    [
        ({"step": 2}, lambda e: e["step"] == 2),
        ({"low": 1}, lambda e: e["reward"] == 1),
        ({"high": 0.5}, lambda e: e["reward"] == 0),
        ({"task": "chain-1"}, lambda e: e["task"] == "chain-1"),
        ({"ended": "right", "step": 1}, lambda e: e["reward"] == 1),
    ],
)
def test_a_filter_lists_what_it_says_and_all_of_it(query: dict[str, Any], holds: Any, client: TestClient) -> None:
    found = get(client, "/api/runs/chain/episodes", **query)["episodes"]
    every = get(client, "/api/runs/chain/episodes")["episodes"]
    assert found == [e for e in every if holds(e) and e["step"] == query.get("step", e["step"])] != []


def test_text_is_found_in_replies_and_nowhere_else(client: TestClient, runs: Path) -> None:
    found = get(client, "/api/runs/chain/episodes", text="AGREE WITH", step=3)["episodes"]
    rows = EpisodeFile(runs / "chain/episodes/000003.jsonl.gz").rows()
    said = [row["id"] for row in rows if any("agree with" in turn["text"].lower() for turn in row["turns"])]
    assert [e["id"] for e in found] == said != []
    assert get(client, "/api/runs/chain/episodes", text="response_ids")["episodes"] == []


def test_pages_of_a_list_join_to_the_whole(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    every = get(client, "/api/runs/chain/episodes")["episodes"]
    monkeypatch.setattr("coterie.view.episodes.PAGE", 7)
    pages, after = [], None
    while after is not None or not pages:
        page = get(client, "/api/runs/chain/episodes", **({"after": after} if after else {}))
        pages.append(page["episodes"])
        after = page["more"]
    assert [e for page in pages for e in page] == every and len(pages) == 7


def test_a_turn_leads_to_its_whole_group(client: TestClient) -> None:
    turn = get(client, "/api/runs/chain/episodes/2/5")["turns"][1]
    group = get(client, f"/api/runs/chain/episodes/2/group/{turn['group_number']}")
    assert group["key"] == turn["group"]["key"] and group["count"] == turn["group"]["size"] == len(group["members"])
    assert group["prompts"] == 1 and any(m["line"] == 5 and m["turn"] == 1 for m in group["members"])
    own = [member["shown"]["group"]["own"] for member in group["members"]]
    assert group["mean"] == pytest.approx(sum(own) / len(own))
    mixed = get(client, "/api/runs/debate/episodes/2/group/0")
    assert mixed["prompts"] == 2  # both rounds of a debater are in one group


def test_an_episode_shows_tokens_and_what_was_played_instead(client: TestClient) -> None:
    episode = get(client, "/api/runs/chain/episodes/1/0")
    for turn in episode["turns"]:
        assert "".join(turn["tokens"]) == turn["text"] and "response_ids" not in turn
    (other,) = episode["counterfactuals"]
    assert other["roles"] == ["reasoner"]
    assert get(client, f"/api/runs/chain/counterfactuals/1/{other['line']}")["origin"] == episode["id"]


def test_two_evaluations_are_compared_on_the_same_tasks(client: TestClient) -> None:
    found = get(client, "/api/paired/chain/0/chain/4")
    assert len(found["tasks"]) == found["result"]["tasks"] == 6
    changes = [row["after"] - row["before"] for row in found["tasks"]]
    assert found["result"]["difference"] == pytest.approx(sum(changes) / 6)


def test_comparisons_games_and_verifiers_are_listed_beside_runs(tmp_path: Path) -> None:
    write_games(tmp_path / "bench")
    write_comparison(tmp_path / "pair")
    write_verifier(tmp_path / "judge")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "games.json").symlink_to(tmp_path / "bench" / "games.json")
    client = TestClient(App(Listing([tmp_path])).asgi(), base_url=LOCAL)
    kinds = {one["name"]: one["kind"] for one in get(client, "/api/results")}
    assert kinds == {"bench": "games", "pair": "comparison"}
    assert len(get(client, "/api/results/bench")["results"]) == 5
    assert get(client, "/api/results/pair")["runs"] == ["alone", "team"]
    (tmp_path / "bench" / "games.json").write_text('{"a": 1}')
    assert client.get("/api/results/bench").status_code == 422
    (judge,) = (run for run in get(client, "/api/runs") if run["name"] == "judge")
    assert judge["verifier"] and judge["evaluations"] == pytest.approx([0.6, 0.9])
    assert [row["step"] for row in get(client, "/api/runs/judge")["reliability"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "path",
    [
        "/api/results/nowhere", "/api/results/..",
        "/api/runs/nowhere", "/api/runs/..%2Fchain", "/api/runs/%2Fetc", "/api/runs/chain/checkpoints",
        "/api/runs/chain/episodes/9/0", "/api/runs/chain/episodes/1/99", "/api/runs/chain/episodes/1/group/99",
        "/static/..%2Fapp.py", "/static/uplot.LICENSE", "/static/%2e%2e%2fapp.py",
    ],
)  # fmt: skip
def test_what_is_not_listed_is_not_found(path: str, client: TestClient) -> None:
    assert client.get(path).status_code == 404


def test_a_link_out_of_the_folder_is_not_followed(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "link").symlink_to(runs / "chain")
    assert Listing([tmp_path / "shown"]).refresh() == {}
    with pytest.raises(NoRuns, match="nowhere: no such folder"):
        Listing([tmp_path / "nowhere"])
    copied = tmp_path / "copied"  # a run whose files are links to another's
    (copied / "episodes").mkdir(parents=True)
    for name in ("config.yaml", "metrics.jsonl", "status.json", "tokens.jsonl", "episodes/000001.jsonl.gz"):
        (copied / name).symlink_to(runs / "chain" / name)
    (shown,) = Listing([copied]).refresh().values()
    assert shown.config() == {} and shown.metrics() == [] and shown.steps("episodes") == []
    assert shown.state()["state"] == "unknown" and shown.token_texts("actor", [1]) is None


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_a_page_of_another_site_is_refused(headers: dict[str, str], client: TestClient) -> None:
    assert client.get("/api/runs", headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/", "/static/dom.js", "/api/runs", "/nowhere"])
def test_every_answer_forbids_inline_and_foreign_scripts(path: str, client: TestClient) -> None:
    policy = client.get(path).headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert client.get(path).headers["x-content-type-options"] == "nosniff"
    asked = {"Origin": "http://localhost:1", "Access-Control-Request-Method": "POST"}
    for allowed in (client.get(path, headers=asked), client.options(path, headers=asked)):
        assert not any(name.startswith("access-control") for name in allowed.headers)


def test_a_viewer_with_a_key_asks_for_it(runs: Path) -> None:
    client = TestClient(App(Listing([runs]), "secret").asgi(), base_url=LOCAL)
    for wrong in (None, ("me", ""), ("me", "wrong"), ("secret", "")):
        assert client.get("/api/runs", auth=wrong).status_code == 401
    assert client.get("/api/runs", auth=("me", "secret")).status_code == 200
    refused = CliRunner().invoke(coterie, ["view", str(runs), "--host", "0.0.0.0", "--port", "0"])
    assert refused.exit_code == 2 and "needs a key: set COTERIE_VIEW_KEY" in refused.stderr


def test_a_replay_needs_to_be_allowed_and_takes_no_options(client: TestClient, runs: Path) -> None:
    assert client.post("/api/runs/chain/replay", json={"changes": ["algorithm=rloo"]}).status_code == 403
    allowed = TestClient(App(Listing([runs]), replays=True).asgi(), base_url=LOCAL)
    for bad in ({"changes": ["--out=x"]}, {"changes": ["reward=math"]}, {"changes": "algorithm=rloo"}, {}):
        assert allowed.post("/api/runs/chain/replay", json=bad).status_code == 422
    assert allowed.post("/api/runs/chain/replay", content="{}").status_code == 415


def test_what_json_does_not_have_is_shown_as_absent(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "odd", "chain")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "reward": NaN, "time": Infinity}\n[1]\nnot a row\n{"step": 6')
    with (folder / "tokens.jsonl").open("a") as file:
        file.write(json.dumps({"policies": ["actor"], "strings": {"0": "\ud800"}}) + "\n")
    client = TestClient(App(Listing([tmp_path])).asgi(), base_url=LOCAL)
    assert get(client, "/api/runs/odd/metrics")[-1] == {"step": 5, "reward": None, "time": None}
    assert get(client, "/api/runs/odd/episodes/1/0")["turns"][1]["tokens"]


def test_a_run_of_an_earlier_version_opens(tmp_path: Path, client: TestClient) -> None:
    folder = write_run(tmp_path / "old", "chain")
    later = ("group", "left_out", "credit_parts", "movement", "messages", "started", "ended", "prompt")
    for path in list((folder / "episodes").iterdir()):
        rows = EpisodeFile(path).rows()
        for turn in (turn for row in rows for turn in row["turns"]):
            [turn.pop(name) for name in later]
        path.with_suffix("").write_text("".join(json.dumps(row) + "\n" for row in rows))
        path.unlink()
    for name in ("status.json", "tokens.jsonl"):
        (folder / name).unlink()
    old = TestClient(App(Listing([tmp_path])).asgi(), base_url=LOCAL)
    assert get(old, "/api/runs")[0]["state"] == "unknown"
    listed = get(old, "/api/runs/old/episodes")["episodes"]
    assert [e["id"] for e in listed] == [e["id"] for e in get(client, "/api/runs/chain/episodes")["episodes"]]
    assert get(old, "/api/runs/old/episodes/1/0")["turns"][0]["tokens"] is None


def test_a_dead_process_is_told_from_a_living_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "killed", "chain")
    status = json.loads((folder / "status.json").read_text())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid, state in ((status["pid"], "running"), (ended.pid, "died")):
        (folder / "status.json").write_text(json.dumps(status | {"state": "running", "pid": pid}))
        assert RunFolder(folder).state()["state"] == state


def test_a_report_is_one_file_and_a_redacted_one_has_no_text(runs: Path) -> None:
    whole, blank = (write_report([runs / "chain", runs / "tools"], 4, redact=redact) for redact in (False, True))
    for text in ("Think about", "four", "Be brief.", "What is 0 + 0?"):
        assert text in whole and text not in blank
    for page in (whole, blank):
        assert "/static/" not in page and str(runs) not in page
        data = page.split('id="data">')[1].split("</script>")[0]
        assert "<" not in data and "advantages" in data


def test_a_report_is_written_by_the_command(runs: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(coterie, ["report", str(runs / "chain"), "--out", str(tmp_path / "run.html"), "--redact"])
    assert done.exit_code == 0 and "without texts" in done.stdout and (tmp_path / "run.html").is_file()
    empty = CliRunner().invoke(coterie, ["report", str(tmp_path), "--out", str(tmp_path / "none.html")])
    assert empty.exit_code == 2 and "no run in it" in empty.stderr
