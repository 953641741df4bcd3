"""`malibu-provider`: the commands. Each body imports what it needs, so that `--help` stays fast.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 could not tell. `run` is the one place that turns an
exception into a line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from provider.errors import ProviderError, UsageError

app = typer.Typer(
    name="malibu-provider",
    help="Serve chat completions from this machine, to a gateway or to programs of your own.",
    epilog="Try it: malibu-provider start --local",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(help="The models on this machine.", no_args_is_help=True, rich_markup_mode=None)
config_app = typer.Typer(help="The configuration in force.", no_args_is_help=True, rich_markup_mode=None)
service_app = typer.Typer(
    help="The daemon as a service: launchd on macOS, systemd on Linux.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(models_app, name="models")
app.add_typer(config_app, name="config")
app.add_typer(service_app, name="service")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file (TOML).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"malibu-provider {version('malibu-provider')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: malibu-provider start --local --model mlx-community/Qwen3-8B-4bit --port 8080")
def start(
    local: Annotated[
        bool, typer.Option("--local", help="Serve programs on this machine, by a gateway here.")
    ] = False,
    gateway: Annotated[
        str | None, typer.Option(metavar="URL", help="The gateway to serve (wss://…).")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="ID, ID=FOLDER or ./FOLDER; may be given several times."),
    ] = None,
    port: Annotated[
        str | None,
        typer.Option(metavar="PORT", help="The local gateway's port; needs --local. [default: 8080]"),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="mlx|scripted", help="What generates. [default: mlx]")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON Lines of answers for the scripted engine.")
    ] = None,
    config: ConfigOption = None,
    service: Annotated[
        bool,
        typer.Option(
            "--service", help="Run under launchd or systemd: stay, idle, on faults of configuration."
        ),
    ] = False,
) -> None:
    """Start serving. Stays in the foreground until Ctrl-C."""
    from cli.serve import start as run_start

    run_start(
        local=local,
        gateway=gateway,
        models=model or [],
        port=port,
        engine=engine,
        script=script,
        config_file=config,
        service=service,
    )


@app.command(epilog="Example: malibu-provider gateway --port 8080, then: start --gateway ws://127.0.0.1:8080")
def gateway(
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address to bind. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[str | None, typer.Option(metavar="PORT", help="Port to bind. [default: 8080]")] = None,
    config: ConfigOption = None,
) -> None:
    """Run only the local gateway; daemons connect to it from this machine or others."""
    from cli.serve import gateway as run_gateway

    run_gateway(host=host, port=port, config_file=config)


@app.command()
def status(json_: JsonOption = False) -> None:
    """What the running daemon is doing, and why it gets no jobs if it gets none.

    Exit 0: a daemon runs. 1: none runs. 3: one runs but doesn't answer.
    """
    from cli.control import show_status

    raise typer.Exit(show_status(as_json=json_))


@app.command()
def doctor(json_: JsonOption = False, config: ConfigOption = None) -> None:
    """What is wrong with this set-up, and what to do about it.

    Exit 0: all is well. 1: something fails. 3: could not tell.
    """
    from cli.doctor.run import run_doctor

    raise typer.Exit(run_doctor(as_json=json_, config_file=config))


@app.command()
def stop() -> None:
    """Let the running daemon finish its jobs, then end it; returns when it is gone."""
    from cli.control import stop_daemon

    stop_daemon()


@models_app.command("list")
def models_list(json_: JsonOption = False, config: ConfigOption = None) -> None:
    """Models of the catalogue and of this machine's cache."""
    from cli.models import list_models

    list_models(as_json=json_, config_file=config)


@models_app.command("pull", epilog="Example: malibu-provider models pull mlx-community/Qwen3-8B-4bit")
def models_pull(
    model: Annotated[str, typer.Argument(metavar="ID", help="Catalogue or Hugging Face ID.")],
    config: ConfigOption = None,
) -> None:
    """Fetch a model, or its newest revision."""
    from cli.models import pull_model

    pull_model(model, config_file=config)


@models_app.command("remove")
def models_remove(
    model: Annotated[str, typer.Argument(metavar="ID", help="Catalogue or Hugging Face ID.")],
    config: ConfigOption = None,
) -> None:
    """Delete a fetched model from this machine."""
    from cli.models import remove_model

    remove_model(model, config_file=config)


@config_app.command("show")
def config_show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value was set.")] = False,
    json_: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Every key with the value in force."""
    from cli.configuration import show_config

    show_config(with_origin=origin, as_json=json_, config_file=config)


@config_app.command("path")
def config_path(config: ConfigOption = None) -> None:
    """The configuration file that is read, whether it exists or not."""
    from cli.configuration import show_path

    show_path(config_file=config)


@service_app.command("install")
def service_install(
    print_: Annotated[bool, typer.Option("--print", help="Print the file instead of installing it.")] = False,
    systemd: Annotated[bool, typer.Option("--systemd", help="With --print: the systemd unit.")] = False,
    config: ConfigOption = None,
) -> None:
    """Install and start the service; a second time renews it."""
    from cli import service

    if print_:
        service.print_definition(systemd=systemd, config_file=config)
    elif systemd:
        raise UsageError("--systemd chooses what --print prints; an installation uses what this machine has")
    else:
        service.install(config)


@service_app.command("uninstall")
def service_uninstall() -> None:
    """Stop and remove the service."""
    from cli import service

    service.uninstall()


@service_app.command("start")
def service_start() -> None:
    """Start the service, now and at each login."""
    from cli import service

    service.start()


@service_app.command("stop")
def service_stop() -> None:
    """Stop the service; it stays stopped until it is started."""
    from cli import service

    service.stop()


@service_app.command("restart")
def service_restart() -> None:
    """Let running jobs finish, then start anew."""
    from cli import service

    service.restart()


@service_app.command("status")
def service_status(json_: JsonOption = False) -> None:
    """Whether the service is installed and runs. Exit 0: it runs, 1: it doesn't."""
    from cli import service

    raise typer.Exit(service.show_status(as_json=json_))


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. Whatever goes wrong is told in a line, never in a traceback."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=list(arguments), prog_name="malibu-provider", standalone_mode=False)
    except ProviderError as error:
        for line in error.lines:
            _complain(line)
        return error.exit_code
    except typer.TyperException as error:
        message = error.format_message()
        # A command without its subcommand: the message is the help.
        if message.startswith("Usage:"):
            print(message, file=sys.stderr)
        else:
            _complain(message)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return 1
    except BrokenPipeError:
        # The reader of our output has left (`… | head`); nothing more can be said to it.
        sys.stdout = None
        return 1
    except Exception as error:
        _complain(_internal_error(error))
        return 1
    return code if isinstance(code, int) else 0


def _complain(line: str) -> None:
    print(f"malibu-provider: {line}", file=sys.stderr)


def _internal_error(error: Exception) -> str:
    """Keep the traceback in a file of the user's and name it; the line itself stays readable."""
    import os
    import traceback

    from provider.system.paths import resolve_paths

    where = "and the details could not be written"
    try:
        logs = resolve_paths(os.environ).logs
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = logs / "crash.txt"
        with open(file, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            traceback.print_exception(error, file=out)
        where = f"details are in {file}"
    except (OSError, ProviderError):
        pass
    return f"an internal error ({type(error).__name__}); {where}"


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
