"""rebase_patches.py --dry-run, and what is told of an upgrade."""

from __future__ import annotations

import pytest
from fake_index import FakeIndex
from fake_upstream import CPU, FILES, World, make_wheel
from upgrades import CONFLICT, CORE, FIRST, MOVED, OTHER, SECOND, TORN, outside, upgrade


def test_the_report_of_a_dry_run_is_all_it_leaves(releases: World) -> None:
    before = outside(releases)
    out = upgrade(releases, "--to", MOVED, "--dry-run")
    assert f"{FIRST}: moved (2 hunks)\n" in out
    assert out.endswith(
        "fake 1.0 -> 2.0: 2 patches, 0 in conflict; 3 hunks: 1 at the same lines, 2 moved, "
        "0 merged to other lines, 0 in conflict\n"
    )
    out = upgrade(releases, "--to", TORN, "--dry-run", code=CONFLICT)
    assert f"{FIRST}: conflict (1 of 2 hunks, in 1 file)\n" in out
    assert f"{SECOND}: clean (1 hunk)\n" in out  # goes on after a conflict
    assert outside(releases) == before
    assert not (releases.engine_home / TORN).exists()


def test_each_patch_of_a_dry_run_finds_those_before_it(releases: World) -> None:
    releases.edit("fakeengine/kv/__init__.py", "    return []\n", "    return [limit]\n")
    releases.commit("Start at the limit\n\nWhy not.\n\nGoes-away-when: never\n")
    releases.run("patches", "export", "fake")
    out = upgrade(releases, "--to", MOVED, "--dry-run")
    assert "0003-start-at-the-limit.patch: clean (1 hunk)\n" in out


def test_a_dry_run_fetches_what_it_needs(
    releases: World, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    wheel = releases.engine_home / "wheels" / CPU.replace("1.0", MOVED)
    index.files[wheel.name] = wheel.rename(releases.root / "served.whl")
    upgrade(releases, "--to", MOVED, "--dry-run")
    assert wheel.read_bytes() == index.files[wheel.name].read_bytes()
    assert f"/files/{wheel.name}" in index.asked


def test_a_file_that_upstream_took_away_is_a_conflict(releases: World) -> None:
    releases.add_release("2.2", {CORE: None})
    releases.offer("2.2")
    out = upgrade(releases, "--to", "2.2", "--dry-run", code=CONFLICT)
    assert f"{FIRST}: conflict (2 of 2 hunks, in 1 file)\n" in out
    assert f"    {CORE} is gone or renamed upstream\n" in out


def test_long_sides_are_cut(releases: World) -> None:
    many = "".join(f"    line{n} = {n}\n" for n in range(40))
    releases.add_release("2.4", {CORE: OTHER.replace("    chosen = deque()\n", many).encode()})
    releases.offer("2.4")
    out = upgrade(releases, "--to", "2.4", "--dry-run", code=CONFLICT)
    assert "      |     line19 = 19\n      ... 20 lines more\n" in out
    assert "line20" not in out


def test_notes_say_which_replaced_requirement_changed(releases: World) -> None:
    name = "fake_upstream-2.5.dist-info/METADATA"
    text = FILES["fake_upstream-1.0.dist-info/METADATA"].replace(b"torch==2.0", b"torch==3.0")
    releases.add_release("2.5", {})
    wheel = releases.engine_home / "wheels" / CPU.replace("1.0", "2.5")
    files = {n.replace("-1.0.", "-2.5."): data for n, data in FILES.items()}
    make_wheel(wheel, files | {name: text})
    releases.offer("2.5")
    out = upgrade(releases, "--to", "2.5")
    assert "variants.cpu.replace.torch is 'torch==2.0'; upstream asked for torch==2.0+cpu" in out
    assert "replace.torchvision" not in out
