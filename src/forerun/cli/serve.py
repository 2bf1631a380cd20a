"""forerun serve: an OpenAI-compatible server."""

import os
import signal
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.cli.drafter_options import DrafterOptions
from forerun.cli.engine_loading import open_engine, size_of
from forerun.cli.failures import find_model, find_model_or_head, say
from forerun.cli.flag_values import read_duration
from forerun.cli.flags import given_settings, option, with_flags_of, with_options
from forerun.cli.fleet import FleetOptions, require_ray, serve_fleet
from forerun.cli.logs import LogOptions, note_all
from forerun.cli.options import MODEL_HELP, EngineOptions, ModelOptions
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import draft_name, drafter_name
from forerun.core.errors import require
from forerun.core.interrupts import ENDING, ended_by, keep_handlers
from forerun.core.machine import free_memory_bytes
from forerun.fleet.config import FleetConfig
from forerun.server.config import ServerConfig

if TYPE_CHECKING:
    from forerun.server.work.served_models import ServedModels

SHOWN: Final = (
    "host",
    "port",
    "max_connections",
    "max_queued",
    "max_queued_per_key",
    "max_queued_tokens",
    "max_request_s",
    "drain_s",
    "saved_prompt_bytes",
)
MODELS_HELP: Final = MODEL_HELP.removesuffix(".") + "; with several, each is loaded when a request asks for it."
SHARE_OF_MEMORY: Final = 0.7  # of the memory that is free at the start, for all weights; caches take the rest


@with_flags_of(ServerConfig, panel="Server", shown=SHOWN)
class ServerOptions:
    """The address, API keys, and limits of queues."""

    api_key: Annotated[
        str | None,
        option(
            "--api-key",
            help="Key that clients need; lists of processes show the flag, but not the variable.",
        ),
    ] = None
    keep_alive: Annotated[
        str | None,
        option("--keep-alive", help="Unload a model that no request used for so long, such as 5m; -1: never [never]."),
    ] = None
    no_saved_prompts: Annotated[bool, option("--no-saved-prompts", help="Save no prompts on disk.")] = False
    api_key_file: Annotated[
        str | None, option("--api-key-file", help="File with such keys, one per line, that only its owner may read.")
    ] = None

    def config(self) -> ServerConfig:
        """The server that these flags ask for."""
        from forerun.server.guard.keys import read_api_keys

        keys: tuple[str, ...] = () if self.api_key is None else (self.api_key,)
        if self.api_key_file is not None:
            keys += read_api_keys(self.api_key_file)
        given = given_settings(ServerConfig, self)
        if self.keep_alive not in (None, "-1"):
            given["keep_alive_s"] = read_duration(self.keep_alive, flag="--keep-alive")
        if self.no_saved_prompts:
            given["saved_prompt_bytes"] = 0
        return ServerConfig(api_keys=keys, **given)


@with_options(ModelOptions, DrafterOptions, EngineOptions, ServerOptions, FleetOptions, LogOptions)
def serve(
    model_options: ModelOptions,
    drafter_options: DrafterOptions,
    engine_options: EngineOptions,
    server_options: ServerOptions,
    fleet_options: FleetOptions,
    logs: LogOptions,
    model: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help=MODELS_HELP)] = None,
    opens_page: Annotated[bool, option("--open", help="Open the page in a browser once the model is loaded.")] = False,
) -> None:
    """Serve models to OpenAI's clients. Each model answers one request after the other."""
    from forerun.server.guard.listening import bind, url_of

    config = server_options.config()
    fleet = fleet_options.config(config)
    os.environ.pop("FORERUN_API_KEY", None)  # the processes that are started need no key
    given = model or []
    refuse_several(given, fleet)
    if not fleet.is_single:
        require_ray()
    listener = bind(config)
    if not fleet.is_single:
        keep_handlers()  # Ray's own handler of SIGTERM aborts the process
    with ended_by(end), listener, logs.speaking():
        is_elsewhere = fleet.ray_address is not None  # each machine finds the model itself
        first = model_options.choose(given[0] if given else None)
        if is_elsewhere and Path(first).exists():  # replicas run in other folders
            first = str(Path(first).absolute())
        names = [first, *given[1:]]
        configs = [
            replace(
                engine_options.config(name, drafter_options.config(name)), saved_prompt_bytes=config.saved_prompt_bytes
            )
            for name in names
        ]
        sizes = {} if is_elsewhere else {each.target: weight_bytes(each) for each in configs}
        others = f"; {' and '.join(names[1:])} when asked for" if len(names) > 1 else ""
        say(f"forerun listens on {url_of(listener)} and loads {names[0]}{others}")
        note_all(config=configs[0])
        on_ready = partial(tell, opens_page=opens_page)
        if not fleet.is_single:
            serve_fleet(fleet, listener, configs[0], on_ready=on_ready)
        else:
            from forerun.server.run import serve as run_server

            run_server(served_models(config, configs, sizes), listener, on_ready=on_ready)


def refuse_several(given: Sequence[str], fleet: FleetConfig) -> None:
    """Raise ConfigError for several models with a setting that allows only one, or with the same name."""
    from forerun.server.work.service import short_name_of

    if len(given) <= 1:
        return
    require(fleet.is_single, f"replicas serve one model: name one, not {len(given)}")
    require(
        fleet.server.model_name is None,
        f"--served-model-name names one model, and {len(given)} are served: leave it out",
    )
    served = [short_name_of(name) for name in given]
    for name in served:
        require(
            served.count(name) == 1, f"two models would have the name {name} for clients: rename one, or leave one out"
        )


def weight_bytes(config: EngineConfig) -> int:
    """Bytes of a model and its draft, which are fetched if needed before anything is loaded."""
    draft = draft_name(config.drafter)
    sources = (find_model(config.target), None if draft is None else find_model_or_head(draft))
    return sum(size_of(source.path) for source in sources if source is not None)


def served_models(config: ServerConfig, configs: Sequence[EngineConfig], sizes: Mapping[str, int]) -> "ServedModels":
    """The models of these engines in this process; of several, as many are loaded at once as fit in memory."""
    from forerun.server.work.served_models import Room, ServedModels
    from forerun.server.work.service import Service

    free = free_memory_bytes()
    num_bytes = None if free is None else int(free * SHARE_OF_MEMORY)
    services = [
        Service(
            config, partial(open_engine, engine_config), target=engine_config.target,
            drafter_name=drafter_name(engine_config.drafter),
        )
        for engine_config in configs
    ]  # fmt: skip
    return ServedModels(services, Room(max_loaded=config.max_loaded, num_bytes=num_bytes, sizes=sizes))


def end(number: int, frame: FrameType | None) -> None:
    """Until the server has its own handlers, a signal ends the process with 0, and a second signal ends it at once."""
    for each in ENDING:
        if signal.getsignal(each) is end:
            signal.signal(each, lambda number, frame: os._exit(128 + number))
    raise SystemExit(0)


def tell(url: str, *, opens_page: bool) -> None:
    """Print the server's address, and open it in a browser, in a thread because that may take long."""
    say(f"ready: {url}/v1 for programs, {url} in a browser (Ctrl-C ends it)")
    if opens_page:
        Thread(target=show, args=(url,), daemon=True).start()


def show(url: str) -> None:
    """Open the page in a browser, or print that there is none."""
    if not webbrowser.open(url):
        say(f"no browser was found (the environment variable BROWSER can name one): open {url} yourself")
