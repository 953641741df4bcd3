"""`models`, `config`, `service`, `receipt`, `keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.options import ConfigOption, JsonOption, group
from provider.errors import UsageError

models_app = group("The models on this machine.", example="models recommend")
config_app = group("The configuration in force.", example="config show --origin")
service_app = group("The daemon as a service: launchd on macOS, systemd on Linux.", example="service install")
receipt_app = group(
    "Receipts: signed proof of an answer.",
    example="receipt verify --request q.json --response a.sse --keys keys.json",
)
keys_app = group("The key this machine signs with.", example="keys show")


@models_app.command("list", epilog="Example: malibu-provider models list")
def models_list(json_: JsonOption = False, config: ConfigOption = None) -> None:
    """Models of the catalogue and of this machine's cache."""
    from cli.models import list_models

    list_models(as_json=json_, config_file=config)


@models_app.command("recommend", epilog="Example: malibu-provider models recommend")
def models_recommend(json_: JsonOption = False) -> None:
    """Models that fit this machine, with the speed its memory bandwidth promises."""
    from cli.models import recommend_models

    recommend_models(as_json=json_)


@models_app.command("pull", epilog="Example: malibu-provider models pull mlx-community/Qwen3-8B-4bit")
def models_pull(
    model: Annotated[str, typer.Argument(metavar="ID", help="Catalogue or Hugging Face ID.")],
    config: ConfigOption = None,
) -> None:
    """Fetch a model, or its newest revision."""
    from cli.models import pull_model

    pull_model(model, config_file=config)


@models_app.command("remove", epilog="Example: malibu-provider models remove smollm2-135m-instruct")
def models_remove(
    model: Annotated[str, typer.Argument(metavar="ID", help="Catalogue or Hugging Face ID.")],
    config: ConfigOption = None,
) -> None:
    """Delete a fetched model from this machine."""
    from cli.models import remove_model

    remove_model(model, config_file=config)


@config_app.command("show", epilog="Example: malibu-provider config show --origin")
def config_show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value was set.")] = False,
    json_: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Every key with the value in force."""
    from cli.configuration import show_config

    show_config(with_origin=origin, as_json=json_, config_file=config)


@config_app.command("path", epilog="Example: malibu-provider config path")
def config_path(config: ConfigOption = None) -> None:
    """The configuration file that is read, whether it exists or not."""
    from cli.configuration import show_path

    show_path(config_file=config)


@service_app.command("install", epilog="Example: malibu-provider service install --print")
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


@service_app.command("uninstall", epilog="Example: malibu-provider service uninstall")
def service_uninstall() -> None:
    """Stop and remove the service."""
    from cli import service

    service.uninstall()


@service_app.command("start", epilog="Example: malibu-provider service start")
def service_start() -> None:
    """Start the service, now and at each login."""
    from cli import service

    service.start()


@service_app.command("stop", epilog="Example: malibu-provider service stop")
def service_stop() -> None:
    """Stop the service; it stays stopped until it is started."""
    from cli import service

    service.stop()


@service_app.command("restart", epilog="Example: malibu-provider service restart")
def service_restart() -> None:
    """Let running jobs finish, then start anew."""
    from cli import service

    service.restart()


@service_app.command("status", epilog="Example: malibu-provider service status")
def service_status(json_: JsonOption = False) -> None:
    """Whether the service is installed and runs. Exit 0: it runs, 1: it doesn't."""
    from cli import service

    raise typer.Exit(service.show_status(as_json=json_))


@receipt_app.command(
    "verify",
    epilog="Example: malibu-provider receipt verify --request q.json --response a.sse --keys keys.json",
)
def receipt_verify(
    request: Annotated[Path, typer.Option("--request", metavar="FILE", help="The request's JSON body.")],
    response: Annotated[
        Path, typer.Option("--response", metavar="FILE", help="The completion, or a recorded SSE stream.")
    ],
    receipt: Annotated[
        Path | None,
        typer.Option("--receipt", metavar="FILE", help="The receipt. [default: the response's own]"),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys", metavar="FILE|URL", help="Known provider keys (JWKS). [default: this machine's]"
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Check a receipt against request and answer. Exit 0: valid. 1: invalid. 3: inconclusive."""
    from cli.receipt import verify_receipt

    raise typer.Exit(
        verify_receipt(receipt=receipt, request=request, response=response, keys=keys, as_json=json_)
    )


@keys_app.command("show", epilog="Example: malibu-provider keys show")
def keys_show(json_: JsonOption = False) -> None:
    """Provider ID and public key."""
    from cli.keys import show_keys

    show_keys(as_json=json_)


@keys_app.command("rotate", epilog="Example: malibu-provider keys rotate")
def keys_rotate() -> None:
    """Replace the key; the provider ID stays."""
    from cli.keys import rotate

    rotate()
