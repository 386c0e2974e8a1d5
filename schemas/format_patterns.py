r"""Formats as patterns, for backends that hold a format loosely or not at all. Pure.

Each pattern admits only what the validator accepts for the format, and may admit less. They are written in what
the regular expressions of JavaScript, Rust and xgrammar have in common. What may be missing is an empty alternative,
and where there are alternatives nothing is repeated from m to n times: see `keyword_support.py` for what xgrammar
makes of these.
"""

from __future__ import annotations

from functools import lru_cache

import jsonschema_rs

_DRAFTS: dict[int, type[jsonschema_rs.Validator]] = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # all but 0000, which Python cannot read
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3])"
# No leap second: whether there was one is not a matter of the text.
_FRACTION = "|".join(rf"\.[0-9]{{{digits}}}" for digits in range(1, 10))
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:|{_FRACTION})(?:[Zz]|[+\-]{_HOUR}:[0-5][0-9])"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9][0-9]|[0-9])"
_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"
_DOMAIN = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"  # at most 61 characters a label, 247 in all
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?_`{|}~\-]"  # and ^, which xgrammar may take for something else
_POINTER_CHARACTER = "(?:[A-Za-z0-9_ .:@$+-]|~[01])"
_URI_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})"

FORMAT_PATTERNS: dict[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "email": rf"^{_ATOM}{{1,32}}(?:\.{_ATOM}{{1,15}}){{0,2}}@{_DOMAIN}$",
    "idn-email": rf"^{_ATOM}{{1,32}}(?:\.{_ATOM}{{1,15}}){{0,2}}@{_DOMAIN}$",
    "hostname": f"^{_DOMAIN}$",
    "idn-hostname": f"^{_DOMAIN}$",
    "ipv4": rf"^{_OCTET}(?:\.{_OCTET}){{3}}$",
    "ipv6": "^[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}$",
    "json-pointer": f"^(?:/{_POINTER_CHARACTER}*)*$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|(?:/{_POINTER_CHARACTER}*)*)$",
    "uri-reference": (
        rf"^(?:https?://[A-Za-z0-9]+(?:[.\-][A-Za-z0-9]+)*(?::[0-9]{{1,4}})?)?(?:/{_URI_CHARACTER}+)*/?"
        rf"(?:\?{_URI_CHARACTER}*)?(?:#{_URI_CHARACTER}*)?$"
    ),
    "iri": rf"^[A-Za-z][A-Za-z0-9+.\-]*:(?:/{_URI_CHARACTER}+)+$",
    "iri-reference": rf"^(?:/{_URI_CHARACTER}+)+$",
    "uri-template": rf"^(?:/{_URI_CHARACTER}+|/\{{[A-Za-z][A-Za-z0-9_]*\}})+$",
}


@lru_cache(maxsize=512)
def is_format(name: str, draft: int) -> bool:
    """Whether the validator holds strings to this format; else it is an annotation. `draft`: 4 to 2020."""
    if name in ("uuid", "duration"):
        return True  # the output check registers them where the draft has none
    try:
        _DRAFTS[draft]({"format": name}, validate_formats=True, ignore_unknown_formats=False)
    except ValueError:
        return False
    return True
