"""Configuration: layers, origins, and one clear line for each fault."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provider.config import LoadedConfig, Settings, known_keys, load, named_files
from provider.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "configs" / "provider.example.toml"

Load = Callable[..., LoadedConfig]


@pytest.fixture
def loading(tmp_path: Path) -> Load:
    file = tmp_path / "config.toml"

    def load_text(
        toml: str = "", environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
    ) -> LoadedConfig:
        file.write_text(toml, encoding="utf-8")
        return load(
            file=file,
            file_required=True,
            environment=environment or {},
            flags=flags or {},
            flag_names={"local_gateway.port": "--port"},
        )

    return load_text


def problems(loading: Load, *arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loading(*arguments)
    return list(caught.value.lines)


def test_defaults_hold_where_nothing_is_set(loading: Load) -> None:
    loaded = loading()
    assert loaded.settings == Settings()
    assert loaded.origins == {}


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(loading: Load) -> None:
    toml = "[local_gateway]\nport = 1001\n[queue]\nseconds = 1\n[engine]\nslots = 2"
    environment = {"MALIBU_PROVIDER_LOCAL_GATEWAY__PORT": "1002", "MALIBU_PROVIDER_QUEUE__SECONDS": "2"}
    loaded = loading(toml, environment, {"local_gateway.port": "1003", "engine.kind": None})
    assert loaded.settings.local_gateway.port == 1003
    assert loaded.settings.queue.seconds == 2
    assert loaded.settings.engine.slots == 2
    assert loaded.settings.drain.seconds == 30
    assert loaded.origins == {
        "local_gateway.port": "--port",
        "queue.seconds": "MALIBU_PROVIDER_QUEUE__SECONDS",
        "engine.slots": str(loaded.file),
    }


def test_a_section_is_merged_key_by_key(loading: Load) -> None:
    settings = loading("[tools]\nforce = false", {"MALIBU_PROVIDER_TOOLS__STREAMING": "whole"}).settings
    assert (settings.tools.force, settings.tools.streaming) == (False, "whole")


def test_a_list_in_the_environment_is_comma_separated(loading: Load) -> None:
    settings = loading("", {"MALIBU_PROVIDER_ENGINE__MODELS": "a/b, c=./d"}).settings
    assert settings.engine.models == ("a/b", "c=./d")


def test_the_two_variables_that_say_where_to_look_are_no_keys(loading: Load) -> None:
    loading("", {"MALIBU_PROVIDER_HOME": "/x", "MALIBU_PROVIDER_CONFIG": "/y"})


def test_a_models_section_is_kept_by_its_id(loading: Load) -> None:
    loaded = loading('[model."a/b.c-1"]\ntool_parser = "llama"\ncontext_length = 99')
    assert loaded.settings.model["a/b.c-1"].tool_parser == "llama"
    assert loaded.values()["model.a/b.c-1.context_length"] == 99
    assert loaded.origins["model.a/b.c-1.tool_parser"] == str(loaded.file)


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ("[engine]\nslotz = 3", "engine.slotz: unknown key (did you mean engine.slots?)"),
        ("[gatewy]\nurl = 'x'", "gatewy: unknown key (did you mean gateway?)"),
        ("[engine]\nslots = 'three'", "engine.slots: must be a whole number, not 'three'"),
        ("[engine]\nslots = true", "engine.slots: must be a whole number, not True"),
        ("[engine]\nslots = 0", "engine.slots: must be greater than or equal to 1, not 0"),
        ("[engine]\nkind = 'cuda'", "engine.kind: must be 'mlx' or 'scripted', not 'cuda'"),
        ("[engine]\nmodels = 3", "engine.models: must be a list, not 3"),
        ("engine = 3", "engine: must be a section of keys, not 3"),
        ("[gateway]\nurl = 'ws://127.0.0.1:99999'", "gateway.url: is no URL: Port out of range 0-65535"),
        ("[gateway]\nurl = 'ws://[::1'", "gateway.url: is no URL: "),
        ("[status]\nurl = 'http://x:port'", "status.url: is no URL: "),
        ("contract = 'loose'", "contract: must be 'malibu' or 'strict', not 'loose'"),
        ("[tools]\nforce = 'maybe'", "tools.force: must be true or false, not 'maybe'"),
        ("[queue]\nseconds = 'soon'", "queue.seconds: must be a number, not 'soon'"),
        ("[queue]\nseconds = -1", "queue.seconds: must be greater than or equal to 0, not -1"),
        (
            "[local_gateway]\nminimum_version = 'newest'",
            "local_gateway.minimum_version: must be a version in numbers, such as 1.2.0",
        ),
        (
            "[gateway]\nrefused_retry_seconds = 0",
            "gateway.refused_retry_seconds: must be greater than or equal to 1",
        ),
        ("[queue]\nseconds = inf", "queue.seconds: Input should be a finite number, not inf"),
        (
            "[local_gateway]\nport = 99999",
            "local_gateway.port: must be less than or equal to 65535, not 99999",
        ),
        ("[gateway]\nurl = 'https://x'", "gateway.url: must be a ws:// or wss:// URL"),
        ("[gateway]\nurl = 'ws://example.org'", "gateway.url: ws:// to another host is not encrypted"),
        ("[gateway]\nurl = 'wss://a:b@example.org'", "gateway.url: must hold no user, query or fragment"),
        ("[gateway]\ntoken_file = '/no/such'", "gateway.token_file: no such file: /no/such"),
        ("[status]\nurl = 'ftp://x'", "status.url: must be an http:// or https:// URL"),
        ("[status]\nurl = 'https://me:secret@x/s'", "status.url: must hold no user, query or fragment"),
        ("[status]\nurl = 'https://x/s?token=secret'", "status.url: must hold no user, query or fragment"),
        ("[engine]\nkind = 'scripted'", 'engine.script: is needed with engine.kind = "scripted"'),
        ("[engine]\nscript = '/no/such'", "engine.script: no such file: /no/such"),
        ("[local_gateway]\ntls_cert = '/x'", "local_gateway.tls_key: is needed too"),
        ("[local_gateway]\nkeys_file = '/no/such'", "local_gateway.keys_file: no such file: /no/such"),
        (
            "[policy]\nwindows = ['Mon 25:00-26:00']",
            "policy.windows: 'Mon 25:00-26:00': 25:00 is no time of day",
        ),
        ("[policy]\nthermal = 'hot'", "policy.thermal: must be 'fair', 'serious', 'critical' or 'off'"),
        ("[model.x]\ntool_parser = 'hermes'", "model.x.tool_parser: must be 'qwen', 'gpt_oss'"),
    ],
)
def test_each_fault_is_one_line_that_names_the_key_and_the_file(loading: Load, toml: str, line: str) -> None:
    (found,) = problems(loading, toml)
    assert found.startswith(line)
    assert "\n" not in found
    if "is needed" not in found:
        assert found.endswith("config.toml)")


def test_several_faults_are_as_many_lines(loading: Load) -> None:
    assert len(problems(loading, "contract = 'x'\n[engine]\nslots = 'y'")) == 2


def test_a_fault_names_the_variable_or_flag_it_came_from(loading: Load) -> None:
    assert problems(loading, "", {"MALIBU_PROVIDER_ENGINE__SLOTS": "x"}) == [
        "engine.slots: must be a whole number, not 'x' (from MALIBU_PROVIDER_ENGINE__SLOTS)"
    ]
    assert problems(loading, "", {"MALIBU_PROVIDER_SLOTS": "3"}) == [
        "slots: unknown key (did you mean engine.slots?) (from MALIBU_PROVIDER_SLOTS)"
    ]
    assert problems(loading, "", {}, {"local_gateway.port": "http"}) == [
        "local_gateway.port: must be a whole number, not 'http' (from --port)"
    ]


def test_a_section_given_as_a_value_is_a_fault_whatever_is_set_above_it(loading: Load) -> None:
    (found,) = problems(loading, "engine = 3", {"MALIBU_PROVIDER_ENGINE__SLOTS": "2"}, {"engine.kind": "mlx"})
    assert found.startswith("engine: must be a section of keys, not 3")
    assert found.endswith("config.toml)")
    (found,) = problems(loading, "[model]\nx = 3", {"MALIBU_PROVIDER_MODEL__X__TOOL_PARSER": "qwen"})
    assert found.startswith("model.x: must be a section of keys, not 3")
    (found,) = problems(loading, "contract = 'malibu'", {"MALIBU_PROVIDER_CONTRACT__X": "1"})
    assert found.startswith("contract: must be ")


def test_a_file_that_was_named_must_exist_and_be_toml(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(ConfigError, match="config: no such file"):
        load(file=missing, file_required=True, environment={}, flags={})
    assert load(file=missing, file_required=False, environment={}, flags={}).settings == Settings()
    broken = tmp_path / "broken.toml"
    broken.write_text("a = [")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(file=broken, file_required=False, environment={}, flags={})
    with pytest.raises(ConfigError, match=f"can't read {tmp_path}: Is a directory$"):
        load(file=tmp_path, file_required=True, environment={}, flags={})
    broken.write_bytes(b"a = 1\n\xff\xfe")
    with pytest.raises(ConfigError, match=r"not UTF-8 at byte 6$"):
        load(file=broken, file_required=False, environment={}, flags={})


@pytest.mark.parametrize(
    "url", ["ws://127.0.0.1:8080", "ws://localhost:8080/", "ws://[::1]:8080/v1/provider"]
)
def test_this_machine_may_be_reached_unencrypted_and_a_bare_origin_gets_the_links_path(
    loading: Load, url: str
) -> None:
    assert loading(f"[gateway]\nurl = '{url}'").settings.gateway.url.endswith(":8080/v1/provider")


def test_an_unencrypted_gateway_can_be_allowed(loading: Load) -> None:
    toml = "[gateway]\nurl = 'ws://10.0.0.5:8080/v1/provider'\nallow_insecure = true"
    assert loading(toml).settings.gateway.url == "ws://10.0.0.5:8080/v1/provider"


def uncommented_example() -> str:
    """The example with every key switched on."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    keep = re.compile(r"# ((?:\[model\.|[a-z_]+ = ).*)")
    return "\n".join(match[1] if (match := keep.fullmatch(line)) else line for line in lines)


def test_the_example_documents_every_key_and_nothing_else(loading: Load, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    text = re.sub(
        r'(\w*file|script|tls_cert|tls_key) = "[^"]*"', rf'\1 = "{tmp_path}/there"', uncommented_example()
    )
    loaded = loading(text)
    assert {re.sub(r"^model\.my-model\.", "model.<id>.", key) for key in loaded.origins} == set(known_keys())


def test_the_example_gives_the_defaults_where_there_are_any() -> None:
    example = tomllib.loads(uncommented_example())
    for key, default in LoadedConfig(Settings(), {}, EXAMPLE).values().items():
        section, _, name = key.rpartition(".")
        shown = (example[section] if section else example)[name]
        if default not in (None, []):
            assert shown == default, key


def test_the_files_that_a_configuration_names_are_told_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"

    def named(text: str) -> tuple[Path, ...]:
        file.write_text(text)
        environment = {"MALIBU_PROVIDER_GATEWAY__TOKEN_FILE": "/from/environment"}
        return named_files(file=file, environment=environment, flags={"engine.script": "/from/flag"})

    more = (Path("/from/flag"), Path("/from/environment"))
    assert named("not TOML at all [") == more
    assert named("[engine]\nscript = '/beaten'\nslotz = 1") == more
    tls = "[local_gateway]\ntls_key = '/missing/key.pem'\ntls_cert = 3\nkeys_file = '~nobody-here/keys'"
    assert named(tls) == (*more, Path("/missing/key.pem"))
    file.unlink()
    assert named_files(file=file, environment={}, flags={}) == ()
