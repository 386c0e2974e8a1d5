"""A model's package: `package.toml` and the files that it names.

model = "movie-tagger"      # a part of topic names
version = "3"               # this package; never changed once it is served
contract = 1                # the interface: versions of one contract are interchangeable
weights = "org/name"        # a hub's id, or a path relative to this file
output = "tags.schema.json"

[prompt]
user = "Tag this film: {{ title }}"
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.schemas.enforcement import Backend, chosen_backend
from headrace.schemas.errors import InvalidSchema, PackageError
from headrace.schemas.messages import Identifier, JsonObject, OutputConstraint, Sampling
from headrace.schemas.output_schema import OutputCheck, OutputSchema
from headrace.schemas.prompt import PromptTemplate, TemplateSource
from headrace.schemas.toml_lines import line_of

FILE_NAME = "package.toml"
MAX_FILE_BYTES = 1024 * 1024  # of package.toml and of each file that it names


_HOOKS = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<class_name>[A-Za-z_]\w*)", re.ASCII)

# What the package says elsewhere, or Headrace decides.
NOT_FOR_ENGINE = {
    "model": "set weights",
    "tokenizer": "set tokenizer at the top",
    "revision": "set revision at the top",
    "served_model_name": "set model at the top",
    "structured_outputs_config": "set structured_outputs at the top",
    "reasoning_parser": "set reasoning_parser at the top",
    "tool_parser": "set tool_parser at the top",
    "tool_call_parser": "set tool_parser at the top",
    "enable_auto_tool_choice": "set tool_parser at the top",
    "scheduling_policy": "Headrace serves its lanes by priority",
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _PromptTable(_Strict):
    system: str | None = None
    system_file: str | None = None
    user: str | None = None
    user_file: str | None = None
    text: str | None = None
    text_file: str | None = None


class _PackageFile(_Strict):
    """`package.toml` as it is written."""

    model: Identifier
    version: Identifier | int
    contract: Annotated[int, Field(ge=1, le=2**31 - 1)]
    weights: Annotated[str, Field(min_length=1)]
    revision: Annotated[str, Field(min_length=1)] | None = None
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    engine: dict[str, Any] = Field(default_factory=dict[str, Any])
    sampling: Sampling = Sampling()
    prompt: str | _PromptTable | None = None
    input: str | dict[str, Any] | None = None
    output: str | dict[str, Any] | None = None
    structured_outputs: Backend | None = None
    order: Literal["key"] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=5)] = 1
    reasoning_parser: Annotated[str, Field(min_length=1)] | None = None
    tool_parser: Annotated[str, Field(min_length=1)] | None = None
    hooks: Annotated[str, Field(min_length=1)] | None = None
    hooks_timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0


@dataclass(frozen=True, slots=True)
class HooksSource:
    """Where a package's hooks are: `module:Class`.

    `file` and `text` are the module's where it lies beside package.toml; without them it is one that can be imported.
    """

    module: str
    class_name: str
    file: Path | None
    text: str | None

    @property
    def name(self) -> str:
        """As the package writes it."""
        return f"{self.module}:{self.class_name}"


@dataclass(frozen=True, slots=True)
class Package:
    """A package, checked and compiled.

    `weights` and `tokenizer` are a path (absolute) where the package means one, else a hub's id. `engine` has
    vLLM's engine arguments, passed on as they are. `digest` is of package.toml and of every file that it
    names, its hooks' module beside it among them, not of the weights. `constraint` and `output_check` are those of
    `output`. `reasoning_parser` and `tool_parser` are vLLM's, checked when the engine is loaded.
    """

    model: str
    version: str
    contract: int
    weights: str | Path
    revision: str | None
    tokenizer: str | Path | None
    engine: JsonObject
    sampling: Sampling
    prompt: PromptTemplate | None
    input: OutputSchema | None
    output: OutputSchema | None
    structured_outputs: Backend | None
    order: Literal["key"] | None  # "key": one request of a key in flight at a time, in the order of the log
    max_attempts: int  # generations of one request, where its output is invalid and another could differ
    reasoning_parser: str | None
    tool_parser: str | None
    hooks: HooksSource | None
    hooks_timeout_s: float  # for each call of a hook
    file: Path
    digest: str
    constraint: OutputConstraint | None
    output_check: OutputCheck | None
    backend_chosen: tuple[Backend, str]  # by the output schema, and why; `structured_outputs` overrides it

    @property
    def directory(self) -> Path:
        """Where `package.toml` lies."""
        return self.file.parent

    @property
    def backend(self) -> Backend:
        """What enforces output schemas while text is generated: one for the engine's life."""
        return self.structured_outputs or self.backend_chosen[0]


def load_package(path: Path) -> Package:
    """Read, check and compile a package, given its directory or its file.

    Raises PackageError with the file, the line where it is known, and the key.
    """
    return _Loading(path).package()


class _Loading:
    """A package's file while it is read: its text, for the lines in messages, and what the digest is of."""

    def __init__(self, path: Path) -> None:
        self.file = (path / FILE_NAME if path.is_dir() else path).absolute()
        self.directory = self.file.parent
        if not self.file.exists():
            raise PackageError("there is no such file; `headrace init` writes a package", file=self.file)
        try:
            self.text = _read(self.file)
        except _Unreadable as error:
            raise PackageError(str(error), file=self.file) from None
        self.contents: dict[str, str] = {FILE_NAME: self.text}
        self.fields = self._parse()

    def fault(self, message: str, *keys: str | int) -> PackageError:
        """An error at a key (`"sampling", "top_p"`) of package.toml."""
        names = tuple(str(key) for key in keys)
        return PackageError(
            message, file=self.file, line=line_of(self.text, names), key=".".join(names) or None
        )

    def package(self) -> Package:
        fields = self.fields
        input_schema = self._schema("input", fields.input)
        output = self._schema("output", fields.output)
        sources = list(self._templates(fields.prompt))
        if input_schema is not None and not sources:
            raise self.fault("describes the variables of a template, and there is no prompt", "input")
        prompt = PromptTemplate(sources, input_schema) if sources else None
        for name, instead in NOT_FOR_ENGINE.items():
            if name in fields.engine:
                raise self.fault(f"does not belong here: {instead}", "engine", name)
        constraint = OutputConstraint(json_schema=output.schema) if output is not None else None
        return Package(
            model=fields.model,
            version=str(fields.version),
            contract=fields.contract,
            weights=self._location(fields.weights),
            revision=fields.revision,
            tokenizer=None if fields.tokenizer is None else self._location(fields.tokenizer),
            engine=fields.engine,
            sampling=fields.sampling,
            prompt=prompt,
            input=input_schema,
            output=output,
            structured_outputs=fields.structured_outputs,
            order=fields.order,
            max_attempts=fields.max_attempts,
            reasoning_parser=fields.reasoning_parser,
            tool_parser=self._tool_parser(fields),
            hooks=self._hooks(fields.hooks),
            hooks_timeout_s=fields.hooks_timeout_s,
            file=self.file,
            digest=self._digest(),
            constraint=constraint,
            output_check=OutputCheck(constraint) if constraint is not None else None,
            backend_chosen=chosen_backend(output),
        )

    def _parse(self) -> _PackageFile:
        try:
            table = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"line (\d+)", str(error))
            raise PackageError(
                f"not TOML: {error}", file=self.file, line=int(line[1]) if line else None
            ) from None
        except RecursionError:
            raise PackageError("not TOML: nested too deep", file=self.file) from None
        try:
            return _PackageFile.model_validate(table)
        except ValidationError as error:
            raise self._explained(error, table) from None

    def _explained(self, error: ValidationError, table: JsonObject) -> PackageError:
        # Where a key may be of two types there is an error for each; the one that got furthest says most.
        first = max(error.errors(include_url=False), key=lambda one: len(_keys(one["loc"], table)[0]))
        keys, place = _keys(first["loc"], table)
        if first["type"] == "missing":
            return self.fault("is missing; a package needs it", *keys, *first["loc"][-1:])
        if first["type"] == "extra_forbidden":
            return self.fault(f"is no key of a package{_suggestion(first['loc'])}", *keys)
        return self.fault(f"{first['msg']} (given: {repr(place)[:80]})", *keys)

    def _templates(self, prompt: str | _PromptTable | None) -> list[TemplateSource]:
        if prompt is None:
            return []
        if isinstance(prompt, str):
            return [TemplateSource("text", prompt, self.file, self._text_line("prompt"), "prompt")]
        found = [
            source
            for role in ("system", "user", "text")
            if (source := self._template(prompt, role)) is not None
        ]
        roles = [source.role for source in found]
        if "text" in roles and len(roles) > 1:
            raise self.fault(
                "stands alone: a text is no message, so it goes with neither system nor user", "prompt"
            )
        if "text" not in roles and "user" not in roles:
            raise self.fault("needs user, user_file, text or text_file", "prompt")
        return found

    def _template(
        self, prompt: _PromptTable, role: Literal["system", "user", "text"]
    ) -> TemplateSource | None:
        text: str | None = getattr(prompt, role)
        name: str | None = getattr(prompt, f"{role}_file")
        if text is not None and name is not None:
            raise self.fault(f"either {role} or {role}_file, not both", "prompt", role)
        if name is not None:
            return TemplateSource(role, self._named(name, "prompt", f"{role}_file"), self.directory / name)
        if text is not None:
            return TemplateSource(role, text, self.file, self._text_line("prompt", role), f"prompt.{role}")
        return None

    def _text_line(self, *keys: str) -> int | None:
        """The line of a string's first character: TOML drops a newline right after three quotes."""
        line = line_of(self.text, keys)
        if line is None:
            return None
        value = self.text.splitlines()[line - 1].partition("=")[2].strip()
        return line + 1 if value in ('"""', "'''") else line

    def _schema(self, key: str, given: str | JsonObject | None) -> OutputSchema | None:
        if given is None:
            return None
        try:
            if isinstance(given, str):
                return OutputSchema.parse(self._named(given, key))
            return OutputSchema.parse(given)
        except InvalidSchema as error:
            if isinstance(given, str):
                raise PackageError(str(error), file=self.directory / given, key=key) from None
            raise self.fault(str(error), key) from None

    def _tool_parser(self, fields: _PackageFile) -> str | None:
        if fields.tool_parser is not None and fields.output is not None:
            raise self.fault(
                "goes with free outputs: all of these are held to the output schema, so none can be a call of a tool",
                "tool_parser",
            )
        return fields.tool_parser

    def _hooks(self, given: str | None) -> HooksSource | None:
        if given is None:
            if "hooks_timeout_s" in self.fields.model_fields_set:
                raise self.fault("is the time limit of hooks, and there are no hooks", "hooks_timeout_s")
            return None
        named = _HOOKS.fullmatch(given)
        if named is None:
            raise self.fault(
                f"must be module:Class, for example hooks:TagHooks (given: {given[:80]!r})", "hooks"
            )
        module, class_name = named["module"], named["class_name"]
        beside = module.replace(".", "/") + ".py"
        if not (self.directory / beside).is_file():
            return HooksSource(module, class_name, None, None)
        text = self._named(beside, "hooks")
        return HooksSource(module, class_name, self.directory / beside, text)

    def _named(self, name: str, *keys: str) -> str:
        """The text of a file that the package names at a key."""
        try:
            self.contents[name] = _read(self.directory / name)
        except _Unreadable as error:
            raise self.fault(str(error), *keys) from None
        return self.contents[name]

    def _location(self, name: str) -> str | Path:
        """A path where it is written as one or lies beside the package, else a hub's id."""
        path = Path(name).expanduser()
        beside = self.directory / path
        if name.startswith((".", "/", "~")) or beside.exists():
            return beside.resolve()
        return name

    def _digest(self) -> str:
        text = json.dumps(self.contents, sort_keys=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _keys(location: tuple[str | int, ...], table: JsonObject) -> tuple[list[str | int], object]:
    """The steps of a validation error's place that are in the file, and what stands there.

    Pydantic puts the names of types in between where a key may be of several.
    """
    keys: list[str | int] = []
    place: object = table
    for step in location:
        if isinstance(place, dict) and step in place:
            place = cast("dict[str | int, object]", place)[step]
            keys.append(step)
        elif isinstance(place, list) and isinstance(step, int):
            place = cast("list[object]", place)[step]
            keys.append(step)
    return keys, cast("object", place)


def _suggestion(location: tuple[str | int, ...]) -> str:
    fields: dict[str, Any]
    match location:
        case ("sampling", _, *_):
            fields = Sampling.model_fields
        case ("prompt", _, *_):
            fields = _PromptTable.model_fields
        case _:
            fields = _PackageFile.model_fields
    close = difflib.get_close_matches(str(location[-1]), fields, n=1)
    return f"; did you mean {close[0]}?" if close else f"; here go {', '.join(fields)}"


class _Unreadable(Exception):
    """A file is not there, too large, or no text; the message is a whole sentence."""


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _Unreadable(f"{path} is larger than {MAX_FILE_BYTES:,} bytes")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise _Unreadable(f"there is no file {path}") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
        raise _Unreadable(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
