"""`headrace keys`: what is printed where, what is kept, and what a mistake is told."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.ops.cli.keys import keys
from headrace.producers.http.key_file import ApiKey, KeyFileError, read_keys
from headrace.producers.http.keys import KeyRing, UnknownKey
from headrace.producers.http.wanted import ApiError
from headrace.schemas.errors import HeadraceError, UsageError

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "api_keys.json"


def run(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(keys, [*arguments, "--file", str(file)], catch_exceptions=True)


def made(file: Path, *arguments: str) -> tuple[str, ApiKey]:
    """(the key, what is kept of it)"""
    result = run(file, "create", *arguments)
    assert result.exit_code == 0, result.output
    key = result.stdout.removesuffix("\n")
    return key, next(each for each in read_keys(file).keys if each.id == key.split("-")[1])


def mistake(result: Result, kind: type[HeadraceError], exit_code: int) -> str:
    assert isinstance(result.exception, kind), result.output
    assert result.exception.exit_code == exit_code
    return str(result.exception)


def test_the_key_alone_is_on_standard_output_and_that_it_is_not_stored_on_the_other(file: Path) -> None:
    result = run(file, "create", "search-team")
    assert re.fullmatch(r"hr-[a-z0-9]{10}-[A-Za-z0-9_-]{43}\n", result.stdout)
    assert "not stored anywhere" in result.stderr
    assert str(file) in result.stderr
    assert result.stdout.strip() not in result.stderr
    assert KeyRing(file).authenticate(f"Bearer {result.stdout.strip()}").tenant == "search-team"


def test_all_that_is_asked_for_is_kept(file: Path) -> None:
    before = time.time_ns() // 1_000_000
    _, kept = made(
        file,
        "nightly",
        "--tenant=search team",
        "--max-concurrent=2",
        "--requests-per-minute=600",
        "--tokens-per-minute=90000",
        "--expires=90d",
    )
    assert (kept.name, kept.tenant) == ("nightly", "search team")
    assert kept.limits.model_dump() == {
        "max_concurrent": 2,
        "requests_per_minute": 600,
        "tokens_per_minute": 90000,
    }
    assert kept.expires is not None
    assert 0 <= kept.expires - before - 90 * DAY_MS < 60_000
    assert 0 <= kept.created - before < 60_000


def test_an_expiry_may_be_a_time(file: Path) -> None:
    _, kept = made(file, "a", "--expires", "2099-01-31T12:00+00:00")
    assert kept.expires == 4_073_544_000_000


def test_a_gateways_key_has_no_tenant(file: Path) -> None:
    assert made(file, "proxy", "--gateway")[1].tenant is None
    both = run(file, "create", "proxy", "--gateway", "--tenant", "a")
    assert "--tenant or --gateway" in mistake(both, UsageError, 2)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\x1b[31m", "n" * 257])
def test_a_name_that_no_terminal_should_print_is_refused(file: Path, name: str) -> None:
    assert "printable" in mistake(run(file, "create", name), UsageError, 2)
    assert "--tenant" in mistake(run(file, "create", "a", "--tenant", name), UsageError, 2)
    assert not file.exists()


@pytest.mark.parametrize("expires", ["90", "-1d", "soon", "0s", "2020-01-01", "999999999d", "1w"])
def test_an_expiry_that_is_none_or_has_passed_is_refused(file: Path, expires: str) -> None:
    result = run(file, "create", "a", "--expires", expires)
    assert result.exit_code == 2
    assert expires in result.stderr
    assert not file.exists()


@pytest.mark.parametrize("option", ["--max-concurrent", "--requests-per-minute", "--tokens-per-minute"])
def test_a_limit_of_nothing_is_refused(file: Path, option: str) -> None:
    result = run(file, "create", "a", option, "0")
    assert result.exit_code == 2
    assert option in result.stderr


def test_the_list_shows_all_but_what_opens(file: Path) -> None:
    assert "has no keys" in run(file, "list").stdout
    first, old = made(file, "one", "--max-concurrent", "3", "--requests-per-minute", "6000")
    second, new = made(file, "two", "--gateway", "--expires", "90d")
    run(file, "revoke", old.id)
    header, *rows = run(file, "list").stdout.splitlines()
    assert header.split() == ["ID", "NAME", "TENANT", "STATE", "CREATED", "EXPIRES", "LIMITS"]
    assert re.fullmatch(rf"{old.id}  one +one +revoked .* UTC  - +3 at a time, 6,000 requests/min", rows[0])
    assert re.fullmatch(rf"{new.id}  two +\(named by each call\)  active .* UTC  .* UTC  -", rows[1])
    listed = json.loads(run(file, "list", "--json").stdout)
    assert [(each["id"], each["state"]) for each in listed] == [(old.id, "revoked"), (new.id, "active")]
    for text in (run(file, "list").output, run(file, "list", "--json").output):
        for secret in (first, second, *(part for each in (old, new) for part in (each.hash, each.salt))):
            assert secret not in text


def test_a_revocation_says_what_was_revoked(file: Path) -> None:
    key, kept = made(file, "one", "--tenant", "acme")
    result = run(file, "revoke", kept.id)
    assert result.exit_code == 0
    assert f"revoked key {kept.id} (one) of tenant acme, made " in result.stdout
    with pytest.raises(ApiError):
        KeyRing(file).authenticate(f"Bearer {key}")
    again = run(file, "revoke", kept.id)
    assert again.exit_code == 0
    assert "has been revoked before" in again.stdout


def test_a_key_is_revoked_by_what_is_found_in_a_leak_and_not_repeated(file: Path) -> None:
    key, kept = made(file, "one")
    result = run(file, "revoke", key)
    assert f"revoked key {kept.id}" in result.stdout
    assert key not in result.output


def test_an_unknown_id_is_told_the_nearest(file: Path) -> None:
    assert "has none at all" in mistake(run(file, "revoke", "abcdefghij"), UnknownKey, 1)
    _, kept = made(file, "search-team")
    made(file, "other")
    typo = kept.id[:-1] + ("a" if kept.id[-1] != "a" else "b")
    assert f"did you mean {kept.id} (search-team)?" in mistake(run(file, "revoke", typo), UnknownKey, 1)
    assert f"did you mean {kept.id} (search-team)?" in mistake(
        run(file, "revoke", "search-team"), UnknownKey, 1
    )
    assert "headrace keys list" in mistake(run(file, "revoke", "00000000"), UnknownKey, 1)
    made(file, "search-team")
    assert "1 more of that name" in mistake(run(file, "revoke", "search-team"), UnknownKey, 1)
    assert all(each.revoked is None for each in read_keys(file).keys)


def test_a_key_that_is_not_ours_is_not_repeated(file: Path) -> None:
    made(file, "one")
    wrong = "hr-abcdefghij-" + "S" * 43
    for given in (wrong, "sk-proj-" + "S" * 43):
        assert "S" * 43 not in mistake(run(file, "revoke", given), UnknownKey, 1)


@pytest.mark.parametrize("arguments", [("create", "a"), ("list",), ("revoke", "abcdefghij")])
def test_a_file_that_holds_something_else_is_named_and_left_alone(
    file: Path, arguments: tuple[str, ...]
) -> None:
    file.write_text("[]")
    assert str(file) in mistake(run(file, *arguments), KeyFileError, 2)
    assert file.read_text() == "[]"


def test_without_file_the_setting_says_where_and_else_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_API_KEYS", raising=False)
    assert CliRunner().invoke(keys, ["create", "one"]).exit_code == 0
    assert [each.name for each in read_keys(tmp_path / "cache" / "api_keys.json").keys] == ["one"]
    monkeypatch.setenv("HEADRACE_API_KEYS", str(tmp_path / "set.json"))
    assert CliRunner().invoke(keys, ["create", "two"]).exit_code == 0
    assert [each.name for each in read_keys(tmp_path / "set.json").keys] == ["two"]
