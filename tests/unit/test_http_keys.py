"""API keys: what is kept of them, who comes in with one, and what a change of their file does and does not do."""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.producers.http import key_file, keys
from headrace.producers.http.caller import Caller, Limits
from headrace.producers.http.key_file import ApiKeys, KeyFileError, change_keys, read_keys
from headrace.producers.http.keys import KeyRing, UnknownKey, create_key, key_id_of, revoke_key
from headrace.producers.http.wanted import ApiError

NOW = 1_800_000_000_000  # ms since the epoch


class Clock:
    """Seconds, and ms since the epoch, that go on when the test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return NOW + int((self.seconds - 100) * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "api_keys.json"


def made(path: Path, name: str = "team", **options: Any) -> tuple[str, str]:
    """(id, key)"""
    kept, key = create_key(path, name, **{"tenant": name, "now_ms": NOW, **options})
    return kept.id, key


def ring(path: Path, clock: Clock) -> KeyRing:
    return KeyRing(path, clock=clock, now_ms=clock.now_ms)


def refusal(ring: KeyRing, header: str | None) -> ApiError:
    with pytest.raises(ApiError) as refused:
        ring.authenticate(header)
    assert refused.value.status == 401
    assert refused.value.headers["WWW-Authenticate"].startswith("Bearer")
    return refused.value


# --- what is kept ---


def test_a_key_has_256_random_bits_and_an_id_without_a_dash(path: Path) -> None:
    found = [made(path) for _ in range(5)]
    for key_id, key in found:
        prefix, named, secret = key.split("-", 2)
        assert (prefix, named) == ("hr", key_id)
        assert re.fullmatch(r"[A-Za-z0-9_-]{43}", secret)  # 43 * 6 bits hold 256
    assert len({key.split("-", 2)[2] for _, key in found}) == 5


def test_neither_key_nor_secret_is_in_the_file_and_only_its_owner_reads_it(path: Path) -> None:
    _, key = made(path, limits=Limits(max_concurrent=3), expires_ms=NOW + 5)
    text = path.read_text()
    assert key.split("-", 2)[2] not in text
    assert path.stat().st_mode & 0o777 == 0o600
    (kept,) = json.loads(text)["keys"]
    assert {name: kept[name] for name in ("name", "tenant", "created", "expires", "revoked")} == {
        "name": "team",
        "tenant": "team",
        "created": NOW,
        "expires": NOW + 5,
        "revoked": None,
    }
    assert kept["limits"]["max_concurrent"] == 3


def test_equal_secrets_would_have_different_hashes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_urlsafe", lambda _: "s" * 43)
    made(path)
    made(path)
    first, second = read_keys(path).keys
    assert first.hash != second.hash


def test_an_id_that_is_taken_is_not_given_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter("a" * 10 + "a" * 10 + "b" * 10)
    monkeypatch.setattr("secrets.choice", lambda _: next(letters))
    assert made(path)[0] == "a" * 10
    assert made(path)[0] == "b" * 10


# --- who comes in ---


def test_a_key_opens_for_its_tenant_with_its_limits(path: Path, clock: Clock) -> None:
    key_id, key = made(path, limits=Limits(requests_per_minute=60), tenant="acme")
    made(path, "another")
    caller = Caller("acme", key_id, "team", Limits(requests_per_minute=60))
    assert ring(path, clock).authenticate(f"Bearer {key}") == caller
    assert ring(path, clock).authenticate(f"bearer   {key} ") == caller


def test_a_gateways_key_has_no_tenant(path: Path, clock: Clock) -> None:
    _, key = made(path, tenant=None)
    assert ring(path, clock).authenticate(f"Bearer {key}").tenant is None


@pytest.mark.parametrize("header", [None, "", "   ", "Bearer", "Bearer ", "bearer\t"])
def test_without_a_key_the_call_is_told_so_as_openai_says_it(
    path: Path, clock: Clock, header: str | None
) -> None:
    error = refusal(ring(path, clock), header)
    assert error.message.startswith("You didn't provide an API key.")
    assert error.as_json() == {
        "error": {
            "message": error.message,
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    }


@pytest.mark.parametrize("scheme", ["Basic", "Token", "Bearer:"])
def test_another_scheme_is_named_and_what_follows_is_not_repeated(
    path: Path, clock: Clock, scheme: str
) -> None:
    _, key = made(path)
    error = refusal(ring(path, clock), f"{scheme} {key}")
    assert "scheme Bearer" in error.message
    assert key not in error.message


def test_a_key_without_its_scheme_is_not_repeated(path: Path, clock: Clock) -> None:
    _, key = made(path)
    assert key.split("-", 2)[2] not in refusal(ring(path, clock), key).message


@pytest.mark.parametrize(
    "given",
    [
        "sk-proj-0123456789abcdefghijklmnopqrstuvwxyz",
        "hr-",
        "hr-nosuchkeyx-" + "A" * 43,
        "hr-ABC-" + "A" * 43,
        "\u00e4" * 50,
        "hr-{id}",
        "hr-{id}-",
        "hr-{id}-" + "A" * 43,
        "{key}A",
        "{key} {key}",
        "{cut}",
        "{other}",
        "x{key}",
    ],
)
def test_what_is_not_the_whole_key_does_not_open(path: Path, clock: Clock, given: str) -> None:
    key_id, key = made(path)
    _, another = made(path)
    other = f"hr-{key_id}-{another.split('-', 2)[2]}"
    given = given.format(id=key_id, key=key, cut=key[:-1], other=other)
    error = refusal(ring(path, clock), f"Bearer {given}")
    assert (error.reason, error.kind) == ("invalid_api_key", "invalid_request_error")
    assert error.message.startswith("Incorrect API key provided")
    assert given == "hr-" or given not in error.message


def test_an_id_that_is_not_there_takes_the_same_work_as_one_that_is(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, key = made(path)
    opened = ring(path, clock)
    compared: list[tuple[int, int]] = []
    hashed: list[int] = []
    digest = keys._digest

    def compare(ours: bytes, theirs: bytes) -> bool:
        compared.append((len(ours), len(theirs)))
        return hmac.compare_digest(ours, theirs)

    def counting(salt: bytes, secret: str) -> bytes:
        hashed.append(len(salt) + len(secret))
        return digest(salt, secret)

    monkeypatch.setattr(keys, "hmac", type("hmac", (), {"compare_digest": staticmethod(compare)}))
    monkeypatch.setattr(keys, "_digest", counting)
    opened.authenticate(f"Bearer {key}")
    refusal(opened, f"Bearer hr-{key_id}-" + "A" * 43)
    refusal(opened, "Bearer hr-nosuchkeyx-" + "A" * 43)
    assert compared == [(32, 32)] * 3
    assert hashed == [16 + 43] * 3


def test_a_key_expires_at_its_time(path: Path, clock: Clock) -> None:
    _, key = made(path, expires_ms=NOW + 2_000)
    opened = ring(path, clock)
    clock.seconds += 1.999
    opened.authenticate(f"Bearer {key}")
    assert len(opened) == 1
    clock.seconds += 0.001
    error = refusal(opened, f"Bearer {key}")
    assert error.reason == "invalid_api_key"
    assert "expired" in error.message
    assert len(opened) == 0


def test_only_who_has_the_secret_learns_that_a_key_was_revoked(path: Path, clock: Clock) -> None:
    key_id, key = made(path)
    revoke_key(path, key_id, now_ms=NOW)
    opened = ring(path, clock)
    assert "revoked" in refusal(opened, f"Bearer {key}").message
    wrong = refusal(opened, f"Bearer hr-{key_id}-" + "A" * 43).message
    assert "revoked" not in wrong
    assert wrong == refusal(opened, "Bearer hr-nosuchkeyx-" + "A" * 43).message.replace("nosuchkeyx", key_id)


# --- a file that changes ---


def test_a_revoked_key_opens_for_a_second_at_most_and_a_new_one_soon(path: Path, clock: Clock) -> None:
    key_id, key = made(path)
    opened = ring(path, clock)
    revoke_key(path, key_id, now_ms=NOW)
    _, new = made(path)
    clock.seconds += 0.999
    opened.authenticate(f"Bearer {key}")
    clock.seconds += 0.001
    refusal(opened, f"Bearer {key}")
    opened.authenticate(f"Bearer {new}")


def test_the_file_is_looked_at_once_a_second_and_read_only_when_it_changed(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = made(path)
    opened = ring(path, clock)
    looks: list[Path] = []
    reads: list[Path] = []
    look, read = key_file.fingerprint, key_file.read_with_fingerprint
    monkeypatch.setattr(keys, "fingerprint", lambda at: (looks.append(at), look(at))[1])
    monkeypatch.setattr(keys, "read_with_fingerprint", lambda at: (reads.append(at), read(at))[1])
    for _ in range(40):
        clock.seconds += 0.25
        opened.authenticate(f"Bearer {key}")
    assert (len(looks), len(reads)) == (10, 0)
    made(path)
    for _ in range(8):
        clock.seconds += 0.25
        opened.authenticate(f"Bearer {key}")
    assert (len(looks), len(reads)) == (12, 1)


@pytest.mark.parametrize("same", ["size", "time"])
def test_a_change_is_noticed_where_size_or_time_stay_the_same(path: Path, clock: Clock, same: str) -> None:
    _, key = made(path, "team-1")
    opened = ring(path, clock)
    before = path.stat()
    text = path.read_text().replace("team-1", "team-2" if same == "size" else "team-two")
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + (1 if same == "size" else 0)))
    clock.seconds += 1
    assert opened.authenticate(f"Bearer {key}").name != "team-1"


def test_a_file_that_does_not_exist_yet_lets_nobody_in_until_it_does(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    opened = ring(path, clock)
    assert f"there is no {path}" in caplog.text
    refusal(opened, "Bearer hr-nosuchkeyx-" + "A" * 43)
    _, key = made(path)
    clock.seconds += 1
    opened.authenticate(f"Bearer {key}")


def vanish(path: Path) -> None:
    path.unlink()


def spoil(path: Path) -> None:
    path.write_text('{"format": 1, "keys": [')


def renew(path: Path) -> None:
    path.write_text('{"format": 2, "keys": []}')


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("break_it", [vanish, spoil, renew, become_a_folder])
def test_a_file_that_becomes_unreadable_leaves_the_keys_as_they_were_and_is_logged_once(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, break_it: Callable[[Path], None]
) -> None:
    key_id, key = made(path)
    opened = ring(path, clock)
    content = path.read_bytes()
    caplog.set_level(logging.INFO)
    break_it(path)
    for _ in range(3):
        clock.seconds += 1
        opened.authenticate(f"Bearer {key}")
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert str(path) in errors[0].getMessage()
    assert opened.trouble is not None

    if path.is_dir():
        path.rmdir()
    path.write_bytes(content)
    revoke_key(path, key_id, now_ms=NOW)
    clock.seconds += 1
    refusal(opened, f"Bearer {key}")
    assert opened.trouble is None
    assert "can be read again" in caplog.text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no API keys"),
        ("[]", "holds no API keys"),
        ('{"format": 2, "keys": []}', r"/format"),
        ('{"keys": [{"id": "abcdefghij"}]}', r"/keys/0/name"),
        ('{"keys": [], "more": 1}', r"/more"),
    ],
)
def test_a_wrong_file_stops_the_start_and_is_never_written_over(
    path: Path, clock: Clock, content: str, says: str
) -> None:
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(KeyFileError, match=says):
        ring(path, clock)
    with pytest.raises(KeyFileError, match=says):
        made(path)
    assert path.read_text() == content


def test_what_is_wrong_in_a_file_is_said_without_quoting_it(path: Path, clock: Clock) -> None:
    made(path)
    kept = json.loads(path.read_text())
    kept["keys"][0]["hash"] = "0123456789" * 7
    path.write_text(json.dumps(kept))
    with pytest.raises(KeyFileError, match=r"/keys/0/hash") as refused:
        ring(path, clock)
    assert "0123456789" not in str(refused.value)


def test_two_keys_of_one_id_are_refused(path: Path) -> None:
    made(path)
    kept = json.loads(path.read_text())
    kept["keys"] *= 2
    path.write_text(json.dumps(kept))
    with pytest.raises(KeyFileError, match="two keys have the id"):
        read_keys(path)


# --- changing it ---


def test_a_revocation_says_what_was_revoked_and_changes_nothing_else(path: Path) -> None:
    first, _ = made(path, "one")
    second, _ = made(path, "two")
    revoked, opened = revoke_key(path, first, now_ms=NOW + 1)
    assert (revoked.name, revoked.revoked, opened) == ("one", NOW + 1, True)
    assert [(each.id, each.revoked) for each in read_keys(path).keys] == [(first, NOW + 1), (second, None)]


def test_a_second_revocation_writes_nothing_and_keeps_the_time_of_the_first(path: Path) -> None:
    key_id, _ = made(path)
    revoke_key(path, key_id, now_ms=NOW + 1)
    before = path.stat()
    revoked, opened = revoke_key(path, key_id, now_ms=NOW + 2)
    assert (revoked.revoked, opened) == (NOW + 1, False)
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_an_unknown_id_is_an_error_and_makes_no_file(path: Path) -> None:
    with pytest.raises(UnknownKey, match="abcdefghij"):
        revoke_key(path, "abcdefghij", now_ms=NOW)
    assert not path.exists()


def test_the_content_is_on_disk_before_it_has_the_files_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda at: (done.append("fsync"), fsync(at))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("replace"), replace(*paths))[1])
    made(path)
    assert done == ["fsync", "replace", "fsync"]  # the last is the folder's


def test_a_change_that_fails_leaves_the_file_and_no_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(KeyFileError, match="cannot be changed: No space left"):
            made(path)
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["api_keys.json", "api_keys.json.lock"]
    made(path)  # the lock was let go


def test_whoever_waits_too_long_for_another_change_is_told_what_holds_it(path: Path) -> None:
    def while_locked(held: ApiKeys) -> ApiKeys:
        with pytest.raises(KeyFileError, match=r"another process holds .*api_keys\.json\.lock"):
            change_keys(path, lambda keys: keys, wait_s=0.05)
        return held

    change_keys(path, while_locked)


def test_a_link_to_the_file_stays_one_and_shares_its_lock(path: Path, tmp_path: Path) -> None:
    made(path)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    made(link)
    assert link.is_symlink()
    assert len(read_keys(path).keys) == 2
    assert not (tmp_path / "link.json.lock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_roots_change_does_not_take_the_file_from_who_serves_with_it(path: Path) -> None:
    made(path)
    os.chown(path, 12345, -1)
    made(path)
    assert path.stat().st_uid == 12345
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_file_locks_keys_are_read_and_not_changed(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = made(path)
    before = path.read_bytes()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    ring(path, clock).authenticate(f"Bearer {key}")
    with pytest.raises(KeyFileError, match="only where files can be locked"):
        made(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("given", "key_id"),
    [
        ("7kq2mzt4xw", "7kq2mzt4xw"),
        ("hr-7kq2mzt4xw", "7kq2mzt4xw"),
        (" hr-7kq2mzt4xw-Ab_-9 ", "7kq2mzt4xw"),
        ("search-team", None),
        ("sk-proj-abc", None),
        ("7KQ2", None),
        ("", None),
    ],
)
def test_an_id_is_found_in_what_is_typed(given: str, key_id: str | None) -> None:
    assert key_id_of(given) == key_id
