"""Arguments of SGLang as a backend is asked about them, whichever release resolves them when."""

from __future__ import annotations

from typing import Any


def resolve(args: Any) -> Any:
    """The same, after all checks. Later releases resolve when a process publishes them."""
    if hasattr(args, "resolve_once"):
        args.resolve_once()
    return args


def server_args(model: str, **given: Any) -> Any:
    from sglang.srt.server_args import ServerArgs

    given = {"device": "cpu", "attention_backend": "torch_native", **given}
    return resolve(ServerArgs(model_path=model, **given))


def settings(args: Any) -> Any:
    """What `kv_storage_config` was resolved to."""
    if hasattr(args, "resolved_dict"):
        return args.resolved_dict()["kv_storage_config"]
    return args.kv_storage_config


class Asked:
    """What a backend is given, with some values in the place of theirs."""

    def __init__(self, args: Any, **values: Any) -> None:
        vars(self).update(values, _args=args)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_args"], name)


def asked_of(backend: Any, model: str, **given: Any) -> Asked:
    """What `backend`, named by `given`, was asked about when these arguments were resolved."""
    seen: list[Any] = []
    check = backend.check_server_args

    def checking(args: Any) -> None:
        seen.append(args)
        check(args)

    backend.check_server_args = checking
    try:
        server_args(model, **given)
    finally:
        backend.check_server_args = check
    return Asked(seen[-1])
