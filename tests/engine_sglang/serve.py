"""Starts a server as `python -m sglang.launch_server ARGUMENT...` does; its scheduler can be looked
into (observe.py)."""

from __future__ import annotations

import os
import sys

from engine_sglang import observe


def main() -> None:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        launch_server(
            prepare_server_args(sys.argv[1:]),
            run_scheduler_process_func=observe.run_scheduler_process,
        )
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
