from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway_protocol.families import Family
from provider.engine.base import ThinkMarkers
from provider.errors import ModelError, ProviderError, UsageError
from provider.models.library import ModelLibrary, ModelOverride
from provider.toolcalls.explain import RawOutput, explain

DEMO = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def _empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Read by huggingface_hub when it is imported; the module attribute covers a process that has it already.
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def library(tmp_path: Path) -> ModelLibrary:
    return ModelLibrary(tmp_path / "models")


def make_folder(folder: Path, *, config: object = None, template: str = "", shards: int = 1) -> Path:
    folder.mkdir(parents=True)
    shown = {"max_position_embeddings": 4096} if config is None else config
    (folder / "config.json").write_text(json.dumps(shown))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for shard in range(shards):
        data = len(header).to_bytes(8, "little") + header + b"\0\0\0\0"
        (folder / f"model-{shard}.safetensors").write_bytes(data)
    return folder


def test_what_the_user_writes_names_one_model(
    library: ModelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "mlx-community" / "Qwen3-8B-4bit").mkdir(parents=True)
    found = {text: library.identify(text) for text in (DEMO, "./here", "here", f"x={tmp_path}/here", "a/b")}
    assert {text: (model.id, model.path) for text, model in found.items()} == {
        DEMO: (DEMO, None),
        "./here": ("here", tmp_path / "here"),
        "here": ("here", tmp_path / "here"),
        f"x={tmp_path}/here": ("x", tmp_path / "here"),
        "a/b": ("a/b", None),
    }
    # An ID of the catalogue or of Hugging Face stays one, whatever folders lie around.
    assert library.identify("mlx-community/Qwen3-8B-4bit").path is None
    for text in ("x=", "=x", "", " "):
        with pytest.raises(UsageError, match="ID=FOLDER") as caught:
            library.identify(text)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(("name", "message"), [("gone", "there is no folder"), ("file", "is not a folder")])
def test_a_folder_of_the_users_that_is_not_there_is_said_to_be_missing(
    library: ModelLibrary, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "file").touch()
    model = library.identify(f"mine={tmp_path / name}")
    with pytest.raises(ModelError, match=message) as caught:
        library.spec(model, library.find(model))
    assert str(tmp_path / name) in str(caught.value)
    assert "pull" not in str(caught.value)


def test_a_folders_files_say_what_the_model_can(library: ModelLibrary, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my-Qwen3-tune", template="{% if x %}<think>{% endif %}")
    model = library.identify(str(folder))
    spec = library.spec(model, library.find(model))
    assert (spec.id, spec.family, spec.context_length) == ("my-Qwen3-tune", Family.QWEN, 4096)
    assert spec.think == ThinkMarkers("<think>", "</think>")
    assert spec.path == folder


def test_the_configuration_beats_the_files(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tune")
    override = ModelOverride(path=folder, tool_parser=Family.LLAMA, context_length=100, max_output_tokens=10)
    library = ModelLibrary(tmp_path / "models", {"mine": override})
    model = library.identify("mine")
    spec = library.spec(model, library.find(model))
    assert (spec.family, spec.context_length, spec.output_cap, spec.path) == (Family.LLAMA, 100, 10, folder)


def test_a_model_that_also_sees_keeps_its_context_one_level_down(
    library: ModelLibrary, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "m", config={"text_config": {"max_position_embeddings": 77}})
    assert library.spec(library.identify(str(folder)), folder).context_length == 77


def test_without_files_the_catalogue_speaks(library: ModelLibrary) -> None:
    spec = library.spec(library.identify("mlx-community/Qwen3-8B-4bit"), None)
    assert (spec.family, spec.context_length) == (Family.QWEN, 40960)
    assert spec.think == ThinkMarkers("<think>", "</think>")
    unknown = library.spec(library.identify("some/llama-3.3-thing"), None)
    assert (unknown.family, unknown.context_length) == (Family.LLAMA, 32768)


@pytest.mark.parametrize(
    ("model", "reasons"), [("my-qwen3", True), ("llama-3.3-mine", False), ("mine", True)]
)
def test_of_a_model_known_by_its_id_alone_reasoning_is_read_as_parse_reads_it(
    library: ModelLibrary, model: str, reasons: bool
) -> None:
    think = library.spec(library.identify(model), None).think
    assert think == (("<think>", "</think>") if reasons else None)
    answer = explain(RawOutput("<think>hmm</think>Answer.", model))
    assert isinstance(answer, dict)
    assert (answer["choices"][0]["message"]["content"] == "Answer.") == reasons


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "model-0.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "model-0.safetensors").write_bytes(b"\x08"), "model-0.safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "config.json").write_text("{}"), "context_length"),
    ],
)
def test_a_broken_folder_is_named(
    library: ModelLibrary, tmp_path: Path, break_it: object, message: str
) -> None:
    folder = make_folder(tmp_path / "m")
    assert callable(break_it)
    break_it(folder)
    with pytest.raises(ProviderError, match=message) as caught:
        library.spec(library.identify(str(folder)), folder)
    assert caught.value.exit_code == 1


def test_a_name_that_is_nothing_is_refused(library: ModelLibrary) -> None:
    with pytest.raises(ModelError, match="not in the catalogue, not a folder and not a Hugging Face ID"):
        library.pull(library.identify("qwen3-best"), lambda line: None)


def test_the_listing_shows_what_is_here(library: ModelLibrary, tmp_path: Path) -> None:
    listed = {model.id: model for model in library.listing()}
    assert listed[DEMO].folder is None
    make_folder(tmp_path / "models" / DEMO)
    listed = {model.id: model for model in library.listing()}
    assert listed[DEMO].folder == tmp_path / "models" / DEMO
    assert listed[DEMO].size_bytes


def test_a_fetched_model_is_removed_and_a_users_folder_never(library: ModelLibrary, tmp_path: Path) -> None:
    make_folder(tmp_path / "models" / DEMO)
    assert library.remove(library.identify(DEMO)) > 0
    assert library.find(library.identify(DEMO)) is None
    for text in (DEMO, "nobody/nothing"):
        with pytest.raises(ModelError, match="is not on this machine"):
            library.remove(library.identify(text))
    mine = make_folder(tmp_path / "mine")
    with pytest.raises(UsageError, match="a folder of yours"):
        library.remove(library.identify(str(mine)))
    assert mine.is_dir()
