"""A real Llama of half a million random parameters, for tests and benches that need vLLM but no particular model.

Its tokenizer is a byte-level BPE of 2,048 tokens trained on text made here. It talks nonsense, obeys
grammars, and hardly ever ends a free string by itself: bound every string that a test asks it for.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

VOCABULARY = 2048  # tokens
CONTEXT = 1024  # tokens
# Refuses a conversation that begins with the assistant, so that a test can see a template refuse.
CHAT_TEMPLATE = (
    "{% if messages[0]['role'] == 'assistant' %}"
    "{{ raise_exception('the first message must not be the assistant\\'s') }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_model(cache_dir: Path, seed: int = 0) -> Path:
    """The directory of the model, made in `cache_dir` on first use and kept under a digest of this recipe.

    Another `seed` gives other weights under the same tokenizer, as another version of a model has.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    target = cache_dir / (f"tiny-{digest}" if seed == 0 else f"tiny-{digest}-{seed}")
    if not target.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix="tiny-", dir=cache_dir))
        _build(building, seed)
        try:
            building.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(building)
    return target


def _corpus() -> list[str]:
    """Lines of made-up words and of JSON, the same every time."""
    dice = random.Random(1)
    syllables = [
        a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "ou")
    ]
    words = ["".join(dice.choices(syllables, k=dice.randint(1, 3))) for _ in range(4000)]
    lines: list[str] = []
    for _ in range(6000):
        lines.append(" ".join(dice.choices(words, k=8)).capitalize() + ".")
        lines.append(f'{{"{dice.choice(words)}": "{dice.choice(words)}", "n": {dice.randint(0, 9999)}}}')
    return lines


def _build(target: Path, seed: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw: Any = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_corpus(), trainer)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(target)

    torch: Any = importlib.import_module("torch")
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model: Any = LlamaForCausalLM(config)
    model.generation_config.max_new_tokens = 24  # so that a test can see the default come from here
    model.to(torch.float32).save_pretrained(target)
