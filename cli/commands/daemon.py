"""Commands of the daemon itself, and those that look at it from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.options import ConfigOption, JsonOption

app = typer.Typer()


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


@app.command(epilog="Example: malibu-provider status --watch")
def status(
    json_: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it every second until Ctrl-C.")] = False,
) -> None:
    """What the running daemon is doing, and why it gets no jobs if it gets none.

    Exit 0: a daemon runs. 1: none runs. 3: one runs but doesn't answer.
    """
    from cli.status import show_status, watch_status

    raise typer.Exit(watch_status(as_json=json_) if watch else show_status(as_json=json_))


@app.command(epilog="Example: malibu-provider measure")
def measure(json_: JsonOption = False, config: ConfigOption = None) -> None:
    """Measure how fast this machine generates and reads tokens; the gateway is told. Takes under a minute."""
    from cli.measure import measure as run_measure

    run_measure(as_json=json_, config_file=config)


@app.command(epilog="Example: malibu-provider doctor")
def doctor(json_: JsonOption = False, config: ConfigOption = None) -> None:
    """What is wrong with this set-up, and what to do about it.

    Exit 0: all is well. 1: something fails. 3: could not tell.
    """
    from cli.doctor.run import run_doctor

    raise typer.Exit(run_doctor(as_json=json_, config_file=config))


@app.command("self-test", epilog="Example: malibu-provider self-test --model mlx-community/Qwen3-8B-4bit")
def self_test(
    model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The model that is asked for a call. [default: the demo model]"),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Try on this machine what can't be shown elsewhere: Metal, power and heat, service, a forced call.

    Exit 0: nothing failed. 1: something did.
    """
    from cli.selftest import run_selftest

    raise typer.Exit(run_selftest(as_json=json_, model=model))


@app.command(epilog="Example: malibu-provider stop")
def stop() -> None:
    """Let the running daemon finish its jobs, then end it; returns when it is gone."""
    from cli.control import stop_daemon

    stop_daemon()


@app.command(epilog="Example: malibu-provider pause --for 2h")
def pause(
    length: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="90m, 2h, 1d. [default: until `resume`]")
    ] = None,
) -> None:
    """Serve nothing for a while; running jobs finish. Holds over restarts."""
    from cli import pause

    pause.pause(length)


@app.command(epilog="Example: malibu-provider resume")
def resume() -> None:
    """End the pause."""
    from cli import pause

    pause.resume()


@app.command(epilog="Example: malibu-provider history --days 7")
def history(
    days: Annotated[int, typer.Option(metavar="N", help="How far back.")] = 30,
    json_: JsonOption = False,
) -> None:
    """What this machine has done, by day and model."""
    from cli.history import show_history

    show_history(days=days, as_json=json_)


@app.command(epilog="Example: malibu-provider logs --lines 20 --follow")
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", help="The last N lines.")] = 100,
) -> None:
    """The service's log."""
    from cli.logs import show_logs

    show_logs(lines=lines, follow=follow)


@app.command(epilog="Example: malibu-provider diagnose --output report.zip")
def diagnose(
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The zip to write. [default: named by the time]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write it without asking.")] = False,
    config: ConfigOption = None,
) -> None:
    """Facts, verdicts, configuration and logs in one zip, for someone who helps. All is shown first."""
    from cli.diagnose.run import diagnose as run_diagnose

    run_diagnose(output=output, yes=yes, config_file=config)


@app.command(
    epilog="Example: malibu-provider parse --model mlx-community/Qwen3-8B-4bit --tools tools.json output.txt"
)
def parse(
    file: Annotated[str | None, typer.Argument(metavar="FILE|-", help="The model's raw output.")] = None,
    model: Annotated[str | None, typer.Option(metavar="ID", help="The model that wrote it.")] = None,
    tools: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The request's tools, or the request, as JSON.")
    ] = None,
    parallel_tool_calls: Annotated[
        bool, typer.Option("--parallel-tool-calls", help="As if the request said true.")
    ] = False,
    finish_reason: Annotated[str, typer.Option(metavar="stop|length", help="Why generation ended.")] = "stop",
    contract: Annotated[str, typer.Option(metavar="malibu|strict", help="The contract in force.")] = "malibu",
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the chunks of a stream, one a line.")
    ] = False,
    chunk_chars: Annotated[
        int | None, typer.Option(metavar="N", help="Read the output in pieces of N characters.")
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Read cases, print a line for each; of one that is refused, its code is in error.code.",
        ),
    ] = None,
) -> None:
    """What the daemon makes of a model's raw output: text, reasoning and tool calls."""
    from cli.parse import parse as run_parse

    run_parse(
        file=file,
        model=model,
        tools=tools,
        parallel=parallel_tool_calls,
        finish_reason=finish_reason,
        contract=contract,
        stream=stream,
        chunk_chars=chunk_chars,
        cases=cases,
    )
