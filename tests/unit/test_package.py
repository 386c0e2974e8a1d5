"""Packages: what is read, and errors that name file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.schemas.contract import Contract
from headrace.schemas.errors import PackageError
from headrace.schemas.messages import Sampling
from headrace.schemas.package import NOT_FOR_ENGINE, load_package

HEAD = 'model = "m"\nversion = 2\ncontract = 1\nweights = "org/name"\n'  # four lines


def write(directory: Path, text: str, **files: str) -> Path:
    (directory / "package.toml").write_text(text, encoding="utf-8")
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content, encoding="utf-8")
    return directory


def test_a_whole_package_is_read(tmp_path: Path) -> None:
    package = load_package(
        write(
            tmp_path,
            HEAD
            + 'revision = "abc"\ninput = "in.json"\noutput = "out.json"\nstructured_outputs = "xgrammar"\n'
            + 'max_attempts = 3\norder = "key"\n[prompt]\nsystem = "Be brief."\nuser_file = "user.jinja"\n'
            + "[sampling]\nmax_tokens = 5\ntemperature = 0\n[engine]\nmax_model_len = 128\n",
            in__json='{"properties": {"title": {"type": "string"}}}',
            out__json='{"type": "integer"}',
            user__jinja="About {{ title }}",
        )
    )
    assert (package.model, package.version, package.contract) == ("m", "2", 1)
    assert (package.weights, package.revision, package.tokenizer) == ("org/name", "abc", None)
    assert package.engine == {"max_model_len": 128}
    assert package.sampling == Sampling(max_tokens=5, temperature=0)
    assert (package.backend, package.max_attempts, package.order) == ("xgrammar", 3, "key")
    assert package.prompt is not None
    assert package.prompt.variables == {"title"}
    assert package.output is not None
    assert package.output_check is not None
    assert package.output_check.digest == package.output.digest
    assert package.directory == tmp_path


def test_the_least_package_has_the_defaults(tmp_path: Path) -> None:
    package = load_package(write(tmp_path, HEAD) / "package.toml")
    assert (package.prompt, package.output, package.output_check, package.constraint) == (None,) * 4
    assert (package.backend, package.max_attempts, package.sampling) == ("guidance", 1, Sampling())
    assert package.order is None


def test_weights_are_a_path_where_they_look_like_one_or_lie_there(tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").mkdir()
    assert load_package(write(tmp_path, HEAD)).weights == (tmp_path / "org" / "name").resolve()
    assert (
        load_package(write(tmp_path, HEAD.replace("org/name", "./w"))).weights == (tmp_path / "w").resolve()
    )
    assert load_package(write(tmp_path, HEAD.replace("org/name", "/w"))).weights == Path("/w")


def test_the_digest_covers_every_file_that_is_named(tmp_path: Path) -> None:
    text = HEAD + 'output = "out.json"\n'
    first = load_package(write(tmp_path, text, out__json='{"type": "integer"}')).digest
    assert load_package(tmp_path).digest == first
    assert load_package(write(tmp_path, text, out__json='{"type": "number"}')).digest != first
    assert (
        load_package(write(tmp_path, text + "\n# a comment", out__json='{"type": "integer"}')).digest != first
    )


@pytest.mark.parametrize(
    ("extra", "line", "key", "message"),
    [
        ('outptu = "x"\n', 5, "outptu", "did you mean output?"),
        ('\n[sampling]\n# top_q = 1\ntop_q = 2.0\n', 8, "sampling.top_q", "did you mean top_p?"),
        ("sampling = { top_p = 2.0 }\n", 5, "sampling.top_p", "less than or equal to 1 (given: 2.0)"),
        ("sampling.max_tokens = 0\n", 5, "sampling.max_tokens", "greater than or equal to 1"),
        ('[prompt]\nusr = "x"\n', 6, "prompt.usr", "did you mean user?"),
        ("prompt = 5\n", 5, "prompt", "string"),
        ('prompt = "{{ x"\n', 5, "prompt", "not Jinja2"),
        ('[prompt]\nuser = """\na\n{% if %}\n"""\n', 8, "prompt.user", "not Jinja2"),
        ('[prompt]\nuser = """a\n[sampling]\ntop_q = 1\n"""\n[sampling]\ntop_q = 1\n', 11, "sampling.top_q", "top_p"),
        ('[prompt]\nsystem = "a"\n', 5, "prompt", "needs user"),
        ('[prompt]\nuser = "a"\ntext = "b"\n', 5, "prompt", "stands alone"),
        ('[prompt]\nuser = "a"\nuser_file = "b"\n', 6, "prompt.user", "not both"),
        ('[prompt]\nuser_file = "nope.jinja"\n', 6, "prompt.user_file", "there is no file"),
        ('output = "nope.json"\n', 5, "output", "there is no file"),
        ('output = "."\n', 5, "output", "cannot be read"),
        ('output = { type = "strin" }\n', 5, "output", "/type"),
        ("output = { const = 2020-01-01 }\n", 5, "output", "not JSON"),
        ('input = { type = "object" }\n', 5, "input", "there is no prompt"),
        ('structured_outputs = "auto"\n', 5, "structured_outputs", "'xgrammar' or 'guidance'"),
        ("max_attempts = 6\n", 5, "max_attempts", "less than or equal to 5"),
        ('order = "partition"\n', 5, "order", "Input should be 'key' (given: 'partition')"),
        ("max_attempts = 1.0\n", 5, "max_attempts", "integer"),
        ("contract = 1\n", 5, None, "not TOML"),
        ("a = \n", 5, None, "not TOML"),
    ],
)  # fmt: skip
def test_an_error_names_file_line_and_key(
    tmp_path: Path, extra: str, line: int, key: str | None, message: str
) -> None:
    with pytest.raises(PackageError) as error:
        load_package(write(tmp_path, HEAD + extra))
    assert (error.value.file, error.value.line, error.value.key) == (tmp_path / "package.toml", line, key)
    assert message in error.value.message
    assert error.value.exit_code == 2


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="contract: is missing"):
        load_package(write(tmp_path, HEAD.replace("contract = 1\n", "")))
    with pytest.raises(PackageError, match="headrace init"):
        load_package(tmp_path / "nowhere")


@pytest.mark.parametrize("key", NOT_FOR_ENGINE)
def test_engine_arguments_that_headrace_sets_itself_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(PackageError, match=f"engine.{key}: does not belong here"):
        load_package(write(tmp_path, HEAD + f'[engine]\n{key} = "x"\n'))


def test_an_error_in_a_file_of_its_own_names_that_file(tmp_path: Path) -> None:
    write(tmp_path, HEAD + '[prompt]\nuser_file = "u.jinja"\n', u__jinja="a\n\n{{ x\n")
    with pytest.raises(PackageError) as error:
        load_package(tmp_path)
    assert (error.value.file, error.value.line) == (tmp_path / "u.jinja", 3)
    write(tmp_path, HEAD + 'output = "o.json"\n', o__json='{"items": {"type": 1}}')
    with pytest.raises(PackageError, match="/items/type") as error:
        load_package(tmp_path)
    assert error.value.file == tmp_path / "o.json"


def test_bytes_that_are_no_text_and_files_too_large_are_refused(tmp_path: Path) -> None:
    (tmp_path / "package.toml").write_bytes(HEAD.encode() + b'x = "\xff"')
    with pytest.raises(PackageError, match="cannot be read"):
        load_package(tmp_path)
    write(tmp_path, HEAD + "#" * 1024 * 1024)
    with pytest.raises(PackageError, match="larger than"):
        load_package(tmp_path)
    write(tmp_path, HEAD + "a = " + "[" * 100_000)
    with pytest.raises(PackageError, match="not TOML"):
        load_package(tmp_path)


def test_a_contract_is_the_interface_and_not_the_version(tmp_path: Path) -> None:
    text = HEAD + 'output = { type = "integer" }\nprompt = "{{ a }} {{ b }}"\n'
    first = Contract.of(load_package(write(tmp_path, text)))
    second = Contract.of(load_package(write(tmp_path, text.replace("version = 2", "version = 3"))))
    other = Contract.of(load_package(write(tmp_path, text.replace("{{ b }}", "{{ c }}"))))
    assert first == second
    assert first.digest == second.digest != other.digest
    assert [(v.name, v.required) for v in first.variable_list()] == [("a", True), ("b", True)]


def test_hooks_are_found_beside_the_package_and_are_part_of_its_digest(tmp_path: Path) -> None:
    written = write(tmp_path, HEAD + 'hooks = "deep.own:Own"\n')
    elsewhere = load_package(written)
    assert elsewhere.hooks is not None
    assert (elsewhere.hooks.name, elsewhere.hooks.file, elsewhere.hooks.text) == ("deep.own:Own", None, None)
    assert elsewhere.hooks_timeout_s == 5
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "own.py").write_text("1")
    beside = load_package(written)
    assert beside.hooks is not None
    assert (beside.hooks.file, beside.hooks.text) == (tmp_path / "deep" / "own.py", "1")
    (tmp_path / "deep" / "own.py").write_text("2")
    assert len({each.digest for each in (elsewhere, beside, load_package(written))}) == 3


@pytest.mark.parametrize(
    "given", ["own", "own:", ":Own", "../own:Own", "own.py:Own:x", "a..b:C", "own:Own.make"]
)
def test_hooks_are_a_module_and_a_class(tmp_path: Path, given: str) -> None:
    with pytest.raises(PackageError, match=r"package.toml:5: hooks: must be module:Class"):
        load_package(write(tmp_path, HEAD + f'hooks = "{given}"\n'))


@pytest.mark.parametrize("given", ["0", "-1", "601", '"5"', "nan", "true"])
def test_the_time_limit_of_hooks_is_a_number_of_seconds(tmp_path: Path, given: str) -> None:
    with pytest.raises(PackageError, match="hooks_timeout_s"):
        load_package(write(tmp_path, HEAD + f'hooks = "a:B"\nhooks_timeout_s = {given}\n'))


def test_a_time_limit_without_hooks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PackageError, match="hooks_timeout_s: is the time limit of hooks, and there are no hooks"
    ):
        load_package(write(tmp_path, HEAD + "hooks_timeout_s = 2\n"))


def test_the_reasoning_parser_is_read(tmp_path: Path) -> None:
    assert load_package(write(tmp_path, HEAD + 'reasoning_parser = "qwen3"\n')).reasoning_parser == "qwen3"


def test_the_tool_parser_is_read(tmp_path: Path) -> None:
    assert load_package(write(tmp_path, HEAD + 'tool_parser = "hermes"\n')).tool_parser == "hermes"
    assert load_package(write(tmp_path, HEAD)).tool_parser is None
    with pytest.raises(PackageError, match=r"package.toml:5: tool_parser: "):
        load_package(write(tmp_path, HEAD + "tool_parser = true\n"))


def test_outputs_that_are_held_to_a_schema_go_with_no_tool_parser(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"package.toml:5: tool_parser: goes with free outputs"):
        load_package(write(tmp_path, HEAD + 'tool_parser = "hermes"\noutput = {type = "object"}\n'))
