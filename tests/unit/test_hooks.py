"""A package's hooks: what they may change, what they may not, and what becomes of a request when one goes wrong."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hook_desk import ASKED, Desk
from packages import TAGS_SCHEMA, a_package
from serving_parts import Sent, a_work

from headrace.schemas.codec import Codec
from headrace.workers.answers import Served
from headrace.workers.cancels import Cancels
from headrace.workers.hooks import METHODS, Hooks, load_hooks
from headrace.workers.replying import ReplySender
from headrace.workers.serving import Serving

# --- before -------------------------------------------------------------------------------------------------------


def test_before_changes_what_is_generated(tmp_path: Path) -> None:
    desk = Desk(
        tmp_path,
        """
        class Own:
            def before(self, request):
                return request.model_copy(update={"prompt": "changed", "variables": None})
        """,
    )
    changed = desk.serve()
    other = Desk(tmp_path / "plain", "class Own:\n    def before(self, request): return None")
    assert changed.outputs[0].text == other.serve('{"id":"a","prompt":"changed"}').outputs[0].text
    assert changed.status == "ok"


def test_none_leaves_request_and_result_as_they_are(tmp_path: Path) -> None:
    nothing = """
    class Own:
        def before(self, request): return None
        def after(self, result): return None
    """
    served = Desk(tmp_path, nothing, output=TAGS_SCHEMA).serve()
    assert served.status == "ok"
    assert set(served.outputs[0].value) == {"mood", "score", "tags"}
    assert served.attributes is None


@pytest.mark.parametrize(
    ("update", "status", "code"),
    [
        ({"variables": {}}, "rejected", "missing_variable"),
        ({"variables": {"title": "x", "more": "y"}}, "rejected", "unknown_field"),
        ({"output": {"regex": "["}}, "rejected", "invalid_schema"),
        ({"prompt": "both"}, "failed", "hook_failed"),
        ({"sampling": "much"}, "failed", "hook_failed"),
        ({"variables": {"title": {1, 2}}}, "failed", "hook_failed"),
        ({"variables": {"title": float("nan")}}, "failed", "hook_failed"),
    ],
)
def test_what_before_returns_is_checked_as_a_request_is(
    tmp_path: Path, update: dict[str, Any], status: str, code: str
) -> None:
    text = repr(update).replace("nan", "float('nan')")
    desk = Desk(
        tmp_path,
        f"class Own:\n    def before(self, request): return request.model_copy(update={text})",
    )
    served = desk.serve()
    assert served.error is not None
    assert (served.status, served.error.code) == (status, code)


@pytest.mark.parametrize(
    "update",
    [
        "id='b'", "key='k'", "deadline=9", "tenant='t'", "job='j'", "result_topic='r'", "stream=True",
        "attributes={'a': 'b'}",
    ],
)  # fmt: skip
def test_before_may_not_change_who_asked(tmp_path: Path, update: str) -> None:
    desk = Desk(
        tmp_path,
        f"class Own:\n    def before(self, request): return request.model_copy(update=dict({update}))",
    )
    served = desk.serve()
    assert served.error is not None
    assert (served.status, served.error.code) == ("failed", "hook_failed")
    assert f"own:Own.before may not change {update.partition('=')[0]}" in served.error.message


# --- after --------------------------------------------------------------------------------------------------------

AFTER = """
class Own:
    def after(self, result):
        output = result.outputs[0]
        {body}
"""


def after(body: str) -> str:
    return AFTER.format(body=body)


def text_to(text: str) -> str:
    return after(
        f"return result.model_copy(update=dict(outputs=[output.model_copy(update=dict(text={text!r}))]))"
    )


def test_a_text_that_after_changed_is_held_to_the_output_schema_once_more(tmp_path: Path) -> None:
    good = '{"mood":"calm","score":3,"tags":["abc"]}'
    served = Desk(tmp_path / "good", text_to(good), output=TAGS_SCHEMA).serve()
    assert (served.status, served.outputs[0].text) == ("ok", good)
    assert served.outputs[0].value == {"mood": "calm", "score": 3, "tags": ["abc"]}
    for number, bad in enumerate(('{"mood":"calm","score":33,"tags":["abc"]}', "no JSON")):
        served = Desk(tmp_path / f"bad{number}", text_to(bad), output=TAGS_SCHEMA).serve()
        assert served.status == "invalid_output"
        assert served.error is not None
        assert served.error.message.startswith("own:Own.after: ")
        assert served.outputs[0].value is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("dict(id='b')", "may not change id"),
        (
            "dict(provenance=result.provenance.model_copy(update=dict(model='m')))",
            "may not change provenance",
        ),
        ("dict(usage=type(result.usage)())", "may not change usage"),
        ("dict(outputs=[])", "made 0 outputs of 1"),
        ("dict(outputs=[output, output])", "made 2 outputs of 1"),
        ("dict(outputs=[output.model_copy(update=dict(value=1))])", "value is what text says"),
        (
            "dict(outputs=[output.model_copy(update=dict(finish_reason='length'))])",
            "may not change finish_reason",
        ),
        ("dict(outputs=[output.model_copy(update=dict(text=7))])", "is no Result"),
        ("dict(status='failed')", "a result has an error"),
        ("dict(status='expired', error=Error(code='x', message='y'))", "may not say expired"),
        ("dict(error=Error(code='x', message='y'))", "a result has an error"),
    ],
)
def test_what_after_may_not_do_fails_its_request_and_publishes_no_output(
    tmp_path: Path, change: str, why: str
) -> None:
    code = "from headrace.schemas.messages import ErrorDetail as Error\n" + after(
        f"return result.model_copy(update={change})"
    )
    served = Desk(tmp_path, code, output=TAGS_SCHEMA).serve()
    assert served.error is not None
    assert (served.status, served.error.code, served.outputs) == ("failed", "hook_failed", [])
    assert why in served.error.message
    assert served.usage.completion_tokens > 0, "it was generated all the same"


def test_after_may_make_a_result_worse_and_say_why(tmp_path: Path) -> None:
    code = "from headrace.schemas.messages import ErrorDetail as Error\n" + after(
        "return result.model_copy(update=dict(status='failed', outputs=[], error=Error(code='blocked', message='no')))"
    )
    served = Desk(tmp_path, code).serve()
    assert served.error is not None
    assert (served.status, served.error.code, served.outputs) == ("failed", "blocked", [])


def test_after_may_not_make_a_result_better(tmp_path: Path) -> None:
    code = after("return result.model_copy(update=dict(status='ok', error=None))")
    served = Desk(tmp_path, code, output=TAGS_SCHEMA).serve(failure="invalid_output")
    assert served.error is not None
    assert (served.status, served.error.code) == ("failed", "hook_failed")
    assert "may not make invalid_output into ok" in served.error.message


def test_after_sees_every_result_of_a_generation_once_and_no_other(tmp_path: Path) -> None:
    code = """
    seen = []
    class Own:
        def after(self, result):
            seen.append(result.status)
            return result.model_copy(update=dict(attributes={"seen": str(seen)}))
    """
    desk = Desk(tmp_path, code, output=TAGS_SCHEMA, extra="max_attempts = 3")

    async def go() -> list[Served]:
        answers = [await desk.serving.serve(a_work(ASKED))]
        desk.engine.script.fail_next("invalid_output")  # and tried again
        answers.append(await desk.serving.serve(a_work(ASKED, offset=1)))
        desk.engine.script.fail_next("truncated")
        answers.append(await desk.serving.serve(a_work(ASKED, offset=2)))
        await desk.serving.serve(a_work('{"id":"b","variables":{}}', offset=3))
        desk.engine.script.fail_next("reject")
        await desk.serving.serve(a_work(ASKED, offset=4))
        return [*answers, await desk.serving.serve(a_work(ASKED, offset=5))]

    attributes = desk.run(go())[-1].attributes
    assert attributes == {"seen": "['ok', 'ok', 'truncated', 'ok']"}


def test_attributes_that_after_gave_are_those_of_the_result(tmp_path: Path) -> None:
    desk = Desk(tmp_path, after('return result.model_copy(update=dict(attributes={"checked": "yes"}))'))
    served = desk.serve('{"id":"a","prompt":"x","attributes":{"own":"1"}}')
    work = a_work('{"id":"a","prompt":"x","attributes":{"own":"1"}}')
    assert desk.answers.result(work, served).attributes == {"checked": "yes"}
    assert desk.answers.result(work, replace(served, attributes=None)).attributes == {"own": "1"}


def test_nothing_is_streamed_that_after_may_still_change(tmp_path: Path) -> None:
    value = '{"id":"a","prompt":"x","stream":true}'
    with_after = Desk(tmp_path / "a", after("return None"))
    assert with_after.serve(value, stream=True).status == "ok"
    assert with_after.replies() == []
    with_before = Desk(tmp_path / "b", "class Own:\n    def before(self, request): return None")
    assert with_before.serve(value, stream=True).status == "ok"
    assert with_before.replies()


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", METHODS)
@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("ValueError('no such film')", "ValueError: no such film"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("StopIteration()", "StopIteration"),
        ("__import__('asyncio').CancelledError()", "CancelledError"),
        ("RecursionError('x' * 100_000)", "RecursionError: xxx"),
    ],
)
def test_an_exception_is_its_requests_failure_and_the_next_is_served(
    tmp_path: Path, hook: str, raised: str, words: str
) -> None:
    code = f"""
    calls = []
    class Own:
        def {hook}(self, message):
            calls.append(message)
            if len(calls) == 1:
                raise {raised}
    """
    desk = Desk(tmp_path, code)

    async def go() -> tuple[Served, Served]:
        return await desk.serving.serve(a_work(ASKED)), await desk.serving.serve(a_work(ASKED, offset=1))

    first, second = desk.run(go())
    assert first.error is not None
    assert (first.status, first.error.code, first.outputs) == ("failed", "hook_failed", [])
    assert f"own:Own.{hook}" in first.error.message
    assert words in first.error.message
    assert len(first.error.message) < 1000
    assert second.status == "ok"


@pytest.mark.parametrize("hook", METHODS)
def test_a_hook_that_returns_something_else_is_named(tmp_path: Path, hook: str) -> None:
    served = Desk(tmp_path, f"class Own:\n    def {hook}(self, message): return 'text'").serve()
    assert served.error is not None
    assert re.search(rf"own:Own.{hook} must return a Re\w+ or None, not str", served.error.message)


def test_the_time_limit_is_the_packages(tmp_path: Path) -> None:
    code = """
    import threading
    gate = threading.Event()
    class Own:
        def before(self, request):
            gate.wait(60)
    """
    desk = Desk(tmp_path, code, extra="hooks_timeout_s = 0.05")
    began = time.monotonic()
    served = desk.serve()
    before = desk.hooks.methods.before
    assert before is not None
    sys.modules[type(before.__self__).__module__].gate.set()  # type: ignore[attr-defined]
    assert served.error is not None
    assert "did not return within 0.05 s" in served.error.message
    assert time.monotonic() - began < 30


def test_hooks_run_off_the_loop(tmp_path: Path) -> None:
    code = """
    import threading
    class Own:
        def after(self, result):
            return result.model_copy(update=dict(attributes={"thread": threading.current_thread().name}))
    """
    attributes = Desk(tmp_path, code).serve().attributes
    assert attributes is not None
    assert attributes["thread"].startswith("hook ")


# --- docs/hooks.md ------------------------------------------------------------------------------------------------


def test_the_example_of_the_documentation_works_as_it_says(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    keys = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / "film_hooks.py").write_text(code)
    desk = Desk(tmp_path / "desk", "class Own:\n    def before(self, request): ...", output=TAGS_SCHEMA)
    package = a_package(tmp_path, extra=keys, output=TAGS_SCHEMA)
    hooks = Hooks.of(load_hooks(package), package, desk.answers.result)
    assert hooks is not None
    serving = Serving(
        package=package,
        engine=desk.engine,
        replies=ReplySender(Sent(), Codec(), model="tagger"),
        cancels=Cancels(),
        hooks=hooks,
    )

    async def go() -> list[Served]:
        titles = (" Heat ", "Heat", "nobody knows this film")
        return [
            await serving.serve(a_work(f'{{"id":"a","variables":{{"title":"{title}"}}}}', offset=offset))
            for offset, title in enumerate(titles)
        ]

    padded, plain, unknown = desk.run(go())
    hooks.threads.close()
    assert padded.status == plain.status == "ok"
    assert padded.outputs[0].text == plain.outputs[0].text, "the title was stripped before it was asked for"
    assert padded.outputs[0].value["tags"] == sorted(set(padded.outputs[0].value["tags"]))
    assert padded.attributes == {"tags": str(len(padded.outputs[0].value["tags"]))}
    assert unknown.error is not None
    assert (unknown.status, unknown.error.code) == ("failed", "hook_failed")
    assert "film_hooks:FilmHooks.before failed: LookupError" in unknown.error.message
