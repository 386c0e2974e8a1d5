"""A batch job of Ray Data LLM, as its documentation has it: prompts from JSON lines in, answers as JSON lines out.

Runs in the environment of Ray, which is not Headrace's, and so imports nothing of Headrace. Each row of the input has
`custom_id` and `prompt`; the output is a folder of JSON lines, a file for each block.
"""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Any

Row = dict[str, Any]


def main() -> None:
    """From the command line; see `python ray_data_job.py --help`."""
    options = _options()
    ray: Any = importlib.import_module("ray")
    data: Any = importlib.import_module("ray.data")
    llm: Any = importlib.import_module("ray.data.llm")

    # Without a count, Ray's own: one for each processor.
    ray.init(include_dashboard=False, num_cpus=options.cpus)
    if options.checkpoint:
        checkpoint: Any = importlib.import_module("ray.data.checkpoint")
        data.DataContext.get_current().checkpoint_config = checkpoint.CheckpointConfig(
            id_column="custom_id", checkpoint_path=options.checkpoint
        )
    # No GPU for the engine; its tokenizer does what the stages for that would do, in processes of their own.
    config = llm.vLLMEngineProcessorConfig(
        model_source=options.model,
        engine_kwargs=json.loads(options.engine),
        batch_size=options.batch_size,
        concurrency=1,
        should_continue_on_error=options.continue_on_error,
        # Its metrics want more of Ray than data needs (`ray[serve]`).
        log_engine_metrics=False,
        placement_group_config={"bundles": [{"CPU": 1}]},
        chat_template_stage={"enabled": True, "num_cpus": 0.5},
        tokenize_stage=False,
        detokenize_stage=False,
    )
    processor = llm.build_processor(
        config,
        preprocess=_Asking(json.loads(options.sampling), options.schema),
        postprocess=_answer,
    )
    # Not `lines=True`: JSON lines are read either way, and the blocks of that reader are refused by the checkpoints of
    # Ray 2.60 when the job is run again.
    rows = data.read_json(options.input)
    rows = rows.repartition(target_num_rows_per_block=options.rows_per_block)
    processor(rows).write_json(options.output)


class _Asking:
    """What is asked with a row."""

    def __init__(self, sampling: Row, schema: str) -> None:
        self._sampling = sampling
        self._schema = schema  # as text: as a column of Arrow, the schema would be a struct

    def __call__(self, row: Row) -> Row:
        return {
            "custom_id": row["custom_id"],
            "messages": [{"role": "user", "content": row["prompt"]}],
            "sampling_params": {
                **self._sampling,
                "structured_outputs": {"json": self._schema},
            },
        }


def _answer(row: Row) -> Row:
    metrics: Row = row.get("metrics") or {}
    return {
        "custom_id": row["custom_id"],
        "text": row["generated_text"],
        "prompt_tokens": row["num_input_tokens"],
        "completion_tokens": row["num_generated_tokens"],
        # Seconds of the engine's own clock, when the last token came; without the engine's statistics none.
        "ended": metrics.get("last_token_ts"),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True, help="A folder.")
    parser.add_argument("--model", required=True, help="A directory or a hub id.")
    parser.add_argument("--engine", required=True, help="vLLM's engine arguments, as JSON.")
    parser.add_argument("--sampling", required=True, help="vLLM's sampling parameters, as JSON.")
    parser.add_argument("--schema", required=True, help="The JSON Schema of an answer.")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rows-per-block", type=int, default=256)
    parser.add_argument("--cpus", type=int, help="What Ray is told that it may share out.")
    parser.add_argument("--continue-on-error", action="store_true", help="A bad row does not end the job.")
    parser.add_argument("--checkpoint", help="A folder. Rows whose ids it names are not asked again.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
