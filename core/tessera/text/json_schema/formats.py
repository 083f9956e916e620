"""The formats of strings that are enforced, as regular expressions.

Dates and times are those of RFC 3339 that the calendar has: leap years have a 29 February, no year is 0000, and no
second is 60, for leap seconds are not known ahead and most libraries refuse them. Offsets of a zone end at 23:59.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_FOUR_OF = r"(?:0[48]|[2468][048]|[13579][26])"
_LEAP = rf"(?:[0-9]{{2}}{_FOUR_OF}|{_FOUR_OF}00)"
_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DAY = r"(?:0[1-9]|1[0-9]|2[0-8])"
_MONTHS = r"(?:0[1-9]|1[0-2])"
_DATE = (
    rf"(?:{_YEAR}-(?:{_MONTHS}-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    rf"|{_LEAP}-02-29)"
)
_TIME = (
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))"
)
_NUMBER = r"[0-9]{1,9}"
_CLOCK = rf"T(?:{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|{_NUMBER}M(?:{_NUMBER}S)?|{_NUMBER}S)"
_DAYS = rf"(?:{_NUMBER}Y(?:{_NUMBER}M(?:{_NUMBER}D)?)?|{_NUMBER}M(?:{_NUMBER}D)?|{_NUMBER}D)"


def _label(max_length: int) -> str:
    """A label of a host's name. max_length: of 63 that the standard allows."""
    return rf"[a-zA-Z0-9](?:[a-zA-Z0-9-]{{0,{max_length - 2}}}[a-zA-Z0-9])?"


# A name has at most 253 characters, which an expression cannot count beside its labels: few labels may be long.
_HOST = (
    rf"(?:{_label(63)}(?:\.{_label(63)}){{0,2}}|{_label(63)}(?:\.{_label(26)}){{0,7}}"
    rf"|{_label(7)}(?:\.{_label(7)}){{0,30}})"
)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-/=?\x5e_`{|}~]"
_LOCAL = rf"(?:{_ATOM}{{1,64}}|{_ATOM}{{1,31}}\.{_ATOM}{{1,32}}|{_ATOM}(?:\.?{_ATOM}){{0,31}})"
"""At most 64 characters, as in RFC 5321, section 4.5.3.1.1: with several dots, some of them only."""
_HEX = r"[0-9a-fA-F]"
_GROUP = rf"{_HEX}{{1,4}}"
_LAST = rf"(?:{_GROUP}:{_GROUP}|{_IPV4})"


def _ipv6() -> str:
    """RFC 4291, section 2.2: `::` stands for one or more groups of zeros, once."""
    forms = [rf"(?:{_GROUP}:){{6}}{_LAST}"]
    for before in range(8):
        head = rf"(?:{_GROUP}(?::{_GROUP}){{0,{before - 1}}})?" if before else ""
        if before <= 5:
            forms.append(rf"{head}::(?:{_GROUP}:){{{5 - before}}}{_LAST}")
        else:
            forms.append(rf"{head}::{_GROUP}" if before == 6 else rf"{head}::")
    return f"(?:{'|'.join(forms)})"


_IPV6 = _ipv6()
_PATH_CHAR = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})"
_SEGMENTS = rf"(?:/{_PATH_CHAR}*)*"
_PORT = r"(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[0-5]?[0-9]{1,4})"
_AUTHORITY = (
    r"(?:(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*@)?"
    rf"(?:\[{_IPV6}\]|(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{{2}})*)(?::{_PORT}?)?"
)
_URI = (
    rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?://{_AUTHORITY}{_SEGMENTS}|/(?:{_PATH_CHAR}+{_SEGMENTS})?|{_PATH_CHAR}+{_SEGMENTS})?"
    rf"(?:\?(?:{_PATH_CHAR}|[/?])*)?(?:#(?:{_PATH_CHAR}|[/?])*)?"
)


def _regex() -> str:
    """Regular expressions that each dialect reads alike, with groups within groups twice: no expression of them all
    can be regular. Of ranges in classes and of counts those whose ends are in order, whatever they are."""
    escape = r"\\[dDwWsSnrtfv\\.*+?()\[\]{}|\x5e$/]"
    ranges = r"a-[fz]|A-[FZ]|[01]-9"
    character_class = rf"\[\x5e?(?:{ranges}|[^\\\[\]\x5e\-&~|\x00-\x1f]|{escape})+-?\]"
    counts = r"\{(?:[0-9]{1,2},?|[0-9],[1-9][0-9]{1,2}|[01],[1-9])\}"
    count = rf"(?:(?:[*+?]|{counts})\??)?"
    part = rf"(?:[^\\()\[\]{{}}*+?|\x5e$\x00-\x1f]|{escape}|{character_class}){count}"
    for _ in range(2):
        part = rf"(?:{part}|\((?:\?:)?(?:{part})*(?:\|(?:{part})*)*\){count})"
    branch = rf"\x5e?{part}*\$?"
    return rf"{branch}(?:\|{branch})*"


FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "date": _DATE,
        "time": _TIME,
        "date-time": rf"{_DATE}[tT]{_TIME}",
        "duration": rf"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|{_NUMBER}W)",  # RFC 3339, appendix A
        "email": rf"{_LOCAL}@(?:{_HOST}|\[{_IPV4}\])",  # RFC 5321, section 4.1.2
        "hostname": _HOST,  # RFC 1123, section 2.1
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "regex": _regex(),  # ECMA-262
        "uuid": rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
        "uri": _URI,  # RFC 3986, appendix A
    }
)
"""What a string of each format matches as a whole; other formats are annotations."""
