"""rebase_patches.py: what it refuses, several pins, --abort, --adopt, --check-latest."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
import yaml
from fake_index import FakeIndex
from fake_upstream import CUDA, World, sha256
from rebase.index import forget_pages, index_url, offers
from upgrades import CONFLICT, FIRST, LATER, MOVED, TORN, outside, resolve, to_torn, upgrade


def test_abort_leaves_nothing(releases: World) -> None:
    before = outside(releases)
    upgrade(releases, "--to", TORN, code=CONFLICT)
    assert f"fake=={TORN}: the upgrade is undone" in upgrade(releases, "--abort")
    assert outside(releases) == before
    assert not (releases.engine_home / TORN).exists()
    line = releases.refused("rebase_patches", "fake", "--abort")
    assert line == "fake: no upgrade is in progress; start one: --to VERSION"


def test_adopt_makes_it_the_default_and_keeps_the_other(releases: World) -> None:
    old_files, old_tree = releases.patch_files(), releases.snapshot()
    to_torn(releases)
    new_tree = releases.at(TORN).snapshot()
    said = upgrade(releases, "--adopt", "--to", TORN)
    assert said == f"vendored/fake/upstream.yaml: is {TORN} now; 1.0 is vendored/fake/1.0\n"
    pin = yaml.safe_load((releases.engine_home / "upstream.yaml").read_text())
    assert pin["version"] == TORN
    assert releases.snapshot() == new_tree  # the default tree is that of the new one
    assert releases.at("1.0").snapshot() == old_tree
    assert releases.at("1.0").patch_files() == old_files
    assert not (releases.engine_home / TORN).exists()
    for wanted in ("fake", f"fake=={TORN}", "fake==1.0"):
        assert "every check holds" in releases.run("patches", "check", wanted)
    again = releases.refused("rebase_patches", "fake", "--adopt", "--to", TORN)
    assert again == f"fake=={TORN}: is the default pin already; nothing is to do"


def test_an_unfinished_upgrade_is_not_adopted(releases: World) -> None:
    upgrade(releases, "--to", TORN, code=CONFLICT)
    line = releases.refused("rebase_patches", "fake", "--adopt", "--to", TORN)
    assert line == f"fake=={TORN}: its upgrade is not finished; --continue it"
    assert "no such pin" in releases.refused("rebase_patches", "fake", "--adopt", "--to", "9.0")


def test_a_series_of_another_pin_is_replayed_by_name(releases: World) -> None:
    upgrade(releases, "--to", MOVED)
    upgrade_of = releases.call("rebase_patches", f"fake=={MOVED}", "--to", TORN, "--dry-run")
    assert upgrade_of.code == CONFLICT
    assert f"fake {MOVED} -> {TORN}: 2 patches, 1 in conflict" in upgrade_of.out
    releases.call("rebase_patches", f"fake=={MOVED}", "--to", TORN)
    resolve(releases)
    upgrade(releases, "--continue")
    assert FIRST in releases.at(TORN).patch_files()


def test_two_upgrades_need_a_name(releases: World) -> None:
    releases.add_release(LATER, {"fakeengine/core.py": b"x = 1\n"})
    releases.offer(LATER)
    for version in (TORN, LATER):
        upgrade(releases, "--to", version, code=CONFLICT)
    line = releases.refused("rebase_patches", "fake", "--continue")
    assert line == f"fake: has 2 upgrades in progress; --to: {TORN}, {LATER}"
    upgrade(releases, "--abort", "--to", LATER)
    resolve(releases)
    upgrade(releases, "--continue")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--to", "1.0"], "fake==1.0: is a pin already"),
        (["--to", "7.0"], "the index has no wheel like fake_upstream-1.0-py3-none-any.whl"),
        (["--to", MOVED, "--variant", "tpu"], "choose one of: cpu, cuda"),
        (["--continue"], "no upgrade is in progress"),
    ],
)
def test_refusals_leave_nothing(releases: World, args: list[str], message: str) -> None:
    before = outside(releases)
    assert message in releases.refused("rebase_patches", "fake", *args)
    assert outside(releases) == before


def test_what_lies_in_the_way_is_left_alone(releases: World) -> None:
    way = releases.root / "patches" / "fake" / MOVED
    way.mkdir()
    (way / "mine.txt").write_text("mine")
    line = releases.refused("rebase_patches", "fake", "--to", MOVED)
    assert line == f"patches/fake/{MOVED}: is there, but is of no pin; move it away"
    upgrade(releases, "--to", TORN, code=CONFLICT)
    line = releases.refused("rebase_patches", "fake", "--to", TORN)
    assert line == f"fake=={TORN}: its upgrade is in progress; --continue or --abort it"


def test_a_series_that_changed_meanwhile_is_noticed(releases: World) -> None:
    upgrade(releases, "--to", TORN, code=CONFLICT)
    resolve(releases)
    upgrade(releases, "--continue")
    upgrade(releases, "--adopt", "--to", TORN)
    upgrade(releases, "--to", MOVED, code=CONFLICT)
    git = releases.at(MOVED).git
    git.raw("checkout", "--theirs", "fakeengine/core.py")
    git.raw("add", "--all")
    (releases.root / "patches" / "fake" / TORN / "series").write_text("")
    line = releases.refused("rebase_patches", "fake", "--continue")
    assert line.startswith(f"patches/fake/{TORN}: is not the series that the upgrade began with")


def test_a_tree_with_work_in_it_is_not_made_anew(releases: World) -> None:
    upgrade(releases, "--to", TORN, code=CONFLICT)
    resolve(releases)
    new = releases.at(TORN)
    pin = yaml.safe_load((new.home / "upstream.yaml").read_text())
    pin["variants"]["cpu"] |= pin["variants"]["cuda"]
    releases.write_pin(TORN, pin)
    line = releases.refused("rebase_patches", "fake", "--continue")
    assert line.endswith("is not the tree of this upgrade any more; --abort it")
    assert "start(limit)" in (new.tree / "fakeengine/core.py").read_text()


def test_one_run_at_a_time(releases: World) -> None:
    with (releases.engine_home / ".rebase.lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        line = releases.refused("rebase_patches", "fake", "--to", MOVED)
    assert "another run of rebase_patches.py is at work on fake" in line
    assert not (releases.engine_home / MOVED).exists()


@pytest.mark.parametrize(
    "args", [[], ["fake"], ["fake", "--to", "not a version"], ["--check-latest", "--abort"]]
)
def test_wrong_use_exits_with_2(releases: World, args: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        releases.call("rebase_patches", *args)
    assert end.value.code == 2


def test_latest_tells_what_would_apply(releases: World) -> None:
    out = releases.call("rebase_patches", "--check-latest", "--releases", "2")
    assert out.code == CONFLICT
    head, _, *rows = out.out.splitlines()
    assert head.startswith("| engine | pinned | release | of | hunks kept |")
    assert rows == [
        f"| fake | 1.0 | {TORN} | 2026-01-02 | 2 | 0 | 1 | 1 of 2 in conflict |",
        f"| fake | 1.0 | {MOVED} | 2026-01-02 | 3 | 0 | 0 | applies |",
    ]


def test_latest_is_green_where_nothing_is_to_do(releases: World, index: FakeIndex) -> None:
    for page in index.pages.values():
        page[:] = [entry for entry in page if TORN not in entry["filename"]]
    out = upgrade(releases, "--check-latest")
    assert f"| fake | 1.0 | {MOVED} | 2026-01-02 | 3 | 0 | 0 | applies |\n" in out
    for page in index.pages.values():
        page.clear()
    forget_pages()
    out = upgrade(releases, "--check-latest")
    assert "| fake | 1.0 | 1.0 |  | - | - | - | is the newest |\n" in out


def test_latest_starts_from_the_newest_pin(releases: World) -> None:
    upgrade(releases, "--to", MOVED)
    out = upgrade(releases, "--check-latest", code=CONFLICT)
    assert f"| fake | {MOVED} | {TORN} | 2026-01-02 | 2 | 0 | 1 | 1 of 2 in conflict |\n" in out
    out = releases.call("rebase_patches", "fake==1.0", "--check-latest").out
    assert f"| fake | 1.0 | {TORN} |" in out


def test_latest_skips_what_nobody_should_take(releases: World, index: FakeIndex) -> None:
    for version in ("4.0", "5.0rc1", "6.0"):
        releases.add_release(version, {})
    wheels = releases.engine_home / "wheels"
    index.offer(wheels / "fake_upstream-4.0-py3-none-any.whl", yanked="broken")
    index.offer(wheels / "fake_upstream-5.0rc1-py3-none-any.whl")
    index.offer(wheels / "fake_upstream-6.0-py3-none-any.whl")
    out = upgrade(releases, "--check-latest", code=CONFLICT)
    assert "| 6.0 | 2026-01-02 | - | - | - | no wheel of fake-gpu yet |" in out
    assert f"| {TORN} |" in out
    assert "4.0" not in out and "5.0" not in out


def test_the_pin_is_rewritten_with_its_comments(releases: World, index: FakeIndex) -> None:
    path = releases.engine_home / "upstream.yaml"
    wheel = releases.engine_home / "wheels" / CUDA.replace("1.0", MOVED)
    path.write_text(
        "# Fake 1.0, our fork; the tag is v1.0. Not 1.0.1, nor 11.0.\n"
        + path.read_text()
        .replace("commit: unknown", "commit: 0123456789abcdef  # of v1.0")
        .replace("revision: 1", "revision: 7  # wheels are 1.0.post<revision>")
    )
    upgrade(releases, "--to", MOVED)
    text = (releases.engine_home / MOVED / "upstream.yaml").read_text()
    assert text.startswith("# Fake 2.0, our fork; the tag is v2.0. Not 1.0.1, nor 11.0.\n")
    assert "commit: unknown  # of v2.0\n" in text
    assert "revision: 1  # wheels are 2.0.post<revision>\n" in text
    assert sha256(wheel) in text


def test_the_pin_of_a_post_release_is_made_from_its_own_release(releases: World) -> None:
    releases.add_release("1.0.post1", {})
    releases.offer("1.0.post1")
    upgrade(releases, "--to", "1.0.post1")
    made = yaml.safe_load((releases.engine_home / "1.0.post1" / "upstream.yaml").read_text())
    assert made == releases.release_pin("1.0.post1")


def test_a_pin_in_another_style_is_refused(releases: World) -> None:
    path = releases.engine_home / "upstream.yaml"
    pin = yaml.safe_load(path.read_text())
    pin["revision"] = 2
    path.write_text(yaml.safe_dump(pin, default_flow_style=True))
    line = releases.refused("rebase_patches", "fake", "--to", MOVED)
    assert line.startswith("vendored/fake/upstream.yaml: cannot be rewritten for 2.0")


def test_an_index_that_does_not_answer_is_named(
    releases: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    line = releases.refused("rebase_patches", "fake", "--to", MOVED)
    assert line.startswith("http://127.0.0.1:9/simple/fake-upstream/: no page of fake-upstream")


def test_the_index_is_pips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://mirror.example/simple\n")
    assert index_url() == "http://mirror.example/simple"


def test_credentials_of_the_index_are_sent_not_shown(
    releases: World, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//me:secret@"))
    assert [offer.file for offer in offers("fake-gpu")][:1] == [CUDA]
    assert index.credentials[-1] == "Basic bWU6c2VjcmV0"
    assert "secret" not in releases.refused("rebase_patches", "fake", "--to", "7.0")
