"""`malibu-provider`: puts the commands together and runs one.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 could not tell. `run` is the one place that turns an
exception into a line on stderr. Nothing heavy is imported here or in `cli.commands`: `--help` must be fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cli.commands import daemon, gateway, groups
from provider.errors import ProviderError

app = typer.Typer(
    name="malibu-provider",
    help="Serve chat completions from this machine, to a gateway or to programs of your own.",
    epilog="Example: malibu-provider start --local",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(daemon.app)
app.add_typer(gateway.app, name="gateway")
app.add_typer(groups.models_app, name="models")
app.add_typer(groups.config_app, name="config")
app.add_typer(groups.service_app, name="service")
app.add_typer(groups.receipt_app, name="receipt")
app.add_typer(groups.keys_app, name="keys")


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
