"""git, run so that no configuration of the user or the machine changes what it does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Fixed people and dates make commits reproducible. 2000-01-01T00:00:00Z, any constant would do.
IDENTITY = "kvcached-forks"
EMAIL = "kvcached-forks@invalid"
DATE = "946684800 +0000"

_CONFIG = (
    "core.autocrlf=false",
    "core.eol=lf",
    "core.safecrlf=false",
    "core.fileMode=true",
    "core.quotePath=true",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "apply.whitespace=nowarn",
    "apply.ignoreWhitespace=no",
    "commit.gpgSign=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.suppressBlankEmpty=false",
    "gc.auto=0",
    "merge.conflictStyle=merge",
    "merge.directoryRenames=false",
    "merge.renames=true",
    "merge.renameLimit=0",
    "rerere.enabled=false",
    "maintenance.auto=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
)


class GitError(RuntimeError):
    """git exited with a status that the caller did not expect; holds what git said."""

    def __init__(self, args: tuple[str, ...], said: str) -> None:
        super().__init__(f"git {' '.join(args)}: {said}")
        self.said = said


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
        "TZ": "UTC",
    }
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": IDENTITY, f"GIT_{role}_EMAIL": EMAIL, f"GIT_{role}_DATE": DATE}
    return env | dict(extra)


@dataclass(frozen=True)
class Git:
    """One repository. `work` is its work tree, or its git directory when it is bare."""

    work: Path
    env: Mapping[str, str] = field(default_factory=dict)
    inherit: tuple[int, ...] = ()
    """Descriptors that each git process keeps open: it holds the locks on them, even if we die."""

    def raw(self, *args: str, stdin: bytes = b"", allow: tuple[int, ...] = (0,)) -> bytes:
        """Standard output of one git command; GitError unless it exits with a status in `allow`."""
        options = [part for setting in _CONFIG for part in ("-c", setting)]
        # The ceiling keeps git from finding the repository around the tree when the tree is broken.
        env = _environment(self.env) | {"GIT_CEILING_DIRECTORIES": str(self.work.resolve().parent)}
        done = subprocess.run(
            ["git", *options, *args],
            cwd=self.work,
            env=env,
            input=stdin,
            capture_output=True,
            check=False,
            pass_fds=self.inherit,
        )
        if done.returncode not in allow:
            raise GitError(args, " ".join(done.stderr.decode(errors="replace").split()))
        return done.stdout

    def text(self, *args: str, stdin: bytes = b"", allow: tuple[int, ...] = (0,)) -> str:
        return self.raw(*args, stdin=stdin, allow=allow).decode("utf-8").strip()

    def with_env(self, **extra: str) -> Git:
        return Git(self.work, {**self.env, **extra}, self.inherit)

    def resolve(self, name: str) -> str | None:
        """The commit that `name` stands for, or None."""
        out = self.text("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", allow=(0, 1, 128))
        return out or None
