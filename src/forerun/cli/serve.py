"""forerun serve: an OpenAI-compatible server."""

import os
import signal
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Thread
from types import FrameType
from typing import Annotated, Final

import typer

from forerun.cli.declare import given_settings, option, with_flags_of, with_options
from forerun.cli.drafter_options import NAMES, DrafterOptions
from forerun.cli.engine_loading import open_engine
from forerun.cli.failures import find_model, say, shows_errors
from forerun.cli.logs import LogOptions, note_all
from forerun.cli.options import MODEL_HELP, EngineOptions, ModelOptions
from forerun.cli.ray_settings import prepare_ray, require_ray
from forerun.core.config import EngineConfig
from forerun.server.config import ServerConfig
from forerun.server.replicas.shares import threads_of

SHOWN: Final = (
    "host", "port", "num_replicas", "max_connections", "max_queued", "max_queued_per_key", "max_queued_tokens",
    "max_request_s", "drain_s",
)  # fmt: skip


@with_flags_of(ServerConfig, panel="Server", shown=SHOWN)
class ServerOptions:
    """Where to listen, who may call, and how much may wait."""

    api_key: Annotated[
        str | None,
        option(
            "--api-key",
            help="Key that callers need; who lists processes sees the flag, but not the variable.",
        ),
    ] = None
    api_key_file: Annotated[
        str | None, option("--api-key-file", help="File with such keys, one a line, that only its owner may read.")
    ] = None

    def config(self) -> ServerConfig:
        """The server these flags ask for."""
        from forerun.server.guard.keys import read_api_keys

        keys: tuple[str, ...] = () if self.api_key is None else (self.api_key,)
        if self.api_key_file is not None:
            keys += read_api_keys(self.api_key_file)
        return ServerConfig(api_keys=keys, **given_settings(ServerConfig, self))


@shows_errors
@with_options(ModelOptions, DrafterOptions, EngineOptions, ServerOptions, LogOptions)
def serve(
    model_options: ModelOptions,
    drafter_options: DrafterOptions,
    engine_options: EngineOptions,
    server_options: ServerOptions,
    logs: LogOptions,
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    opens_page: Annotated[bool, option("--open", help="Open the page in a browser once the model is there.")] = False,
) -> None:
    """Serve a model to OpenAI's clients, one request after the other."""
    from forerun.server.guard.listening import bind, url_of

    config = server_options.config()
    os.environ.pop("FORERUN_API_KEY", None)  # the processes that are started need no key
    if config.num_replicas > 1:
        require_ray()
    listener = bind(config)
    with ending_at_signals(), listener, logs.speaking():
        model = model_options.choose(model)
        drafter = drafter_options.config(model)
        engine_config = engine_options.config(model, drafter)
        if config.num_replicas > 1 and engine_config.num_threads is None:
            engine_config = replace(engine_config, num_threads=threads_of(config.num_replicas))
        find_model(model)
        say(f"forerun listens on {url_of(listener)} and loads {model}")
        note_all(config=engine_config)
        serving(config, engine_config)(
            config,
            listener,
            partial(open_engine, engine_config),
            target=model,
            drafter_name=NAMES[type(drafter)],
            on_ready=lambda url: tell(url, opens_page=opens_page),
        )


def serving(config: ServerConfig, engine_config: EngineConfig) -> Callable[..., None]:
    """What serves: one engine in this process, or several in processes of their own."""
    if config.num_replicas == 1:
        from forerun.server.run import serve as run_server

        return run_server
    prepare_ray()
    from forerun.server.replicas.front import serve_replicas

    return partial(serve_replicas, uses_gpus=engine_config.device.startswith(("auto", "cuda")))


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """While the server has no handlers of its own yet, a signal ends the process as it does later: with 0, and at once
    where it is the second.
    """
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, frame: os._exit(128 + number))
    raise SystemExit(0)


def tell(url: str, *, opens_page: bool) -> None:
    """Say where the server is, and show it in a browser; that one is started aside, since it may take its time."""
    say(f"ready: {url}/v1 for programs, {url} in a browser (Ctrl-C ends it)")
    if opens_page:
        Thread(target=show, args=(url,), daemon=True).start()


def show(url: str) -> None:
    """Show the page, or say that nothing here can."""
    if not webbrowser.open(url):
        say(f"no browser was found here (the variable BROWSER names one): open {url} in yours")
