"""`gateway`: the local gateway alone, its API keys and what they used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.options import ConfigOption, JsonOption, group

app = typer.Typer(
    help="Run only the local gateway; daemons connect to it from this machine or others.",
    epilog="Example: malibu-provider gateway --port 8080, then: start --gateway ws://127.0.0.1:8080",
    invoke_without_command=True,
    rich_markup_mode=None,
)
key_app = group("API keys of the gateway.", example="gateway key add laptop")
app.add_typer(key_app, name="key")


@app.callback()
def gateway(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address to bind. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[str | None, typer.Option(metavar="PORT", help="Port to bind. [default: 8080]")] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="FILE", help="Certificate chain (PEM), for https."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key (PEM).")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Run only the local gateway; daemons connect to it from this machine or others."""
    if context.invoked_subcommand is not None:
        return
    from cli.serve import gateway as run_gateway

    run_gateway(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, config_file=config)


@key_app.command("add", epilog="Example: malibu-provider gateway key add laptop")
def key_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, - and _.")],
    admin: Annotated[bool, typer.Option("--admin", help="It may also see the gateway's page.")] = False,
    config: ConfigOption = None,
) -> None:
    """Make an API key; it is shown this once."""
    from cli.gateway import add

    add(name, admin=admin, config_file=config)


@app.command("usage", epilog="Example: malibu-provider gateway usage --json")
def usage(json_: JsonOption = False, config: ConfigOption = None) -> None:
    """What each key used, by day and model."""
    from cli.gateway import show_usage

    show_usage(as_json=json_, config_file=config)
