"""One-time codes in a mail's subject and text.

Pure. Numbers that are plainly something else are struck out first (addresses, dates, prices,
phone and order numbers …); of what is left, only what stands near a word for a code is taken: in
its sentence, or alone on one of the next lines. The scanned text is bounded, the time linear.
"""
# ruff: noqa: RUF001 - other scripts are the point here

import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, takewhile

from service.mail.code_words import BARE_CUE, CUE, IS, OFFER, PURPOSE, STRIKE_OUT

MAX_CODES = 10
MAX_MIXED_CHARS = 10  # of a code with letters
MAX_SUBJECT_CHARS = 1000
# A mail with a code says so early; what stands beyond is a newsletter or a quoted thread.
MAX_TEXT_CHARS = 32 * 1024
# How far a number may stand from its word in the same sentence, and below it.
REACH_CHARS = 100
REACH_LINES = 3
# How much around a word is read at all: enough to see what a number in its reach is.
CONTEXT_LINES = 6

_ZEROS = "\uff10\u0660\u06f0\u0966\u09e6"  # full-width, Arabic, Persian, Devanagari, Bengali
_TO_ASCII = {ord(zero) + n: str(n) for zero in _ZEROS for n in range(10)}
_TO_ASCII |= {ord("Ａ") + n: chr(ord("A") + n) for n in range(26)}
_TO_ASCII |= {ord("ａ") + n: chr(ord("a") + n) for n in range(26)}
_TO_ASCII |= dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2212\uff0d"), "-")
_TO_ASCII |= dict.fromkeys(map(ord, "\u00a0\u2002\u2003\u2007\u2009\u202f\u3000"), " ")
# Soft hyphens, joiners and direction marks: nobody sees them, and mails are full of them.
_TO_ASCII |= dict.fromkeys([
    0xAD, 0x34F, 0x61C, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A),
    0xFEFF,
], "")  # fmt: skip
_SPREAD_DIGITS = re.compile(
    r"(?<![A-Za-z0-9-])(?<!\d\s)\d(?:\s{1,2}\d){3,7}(?![A-Za-z0-9-]|\s{1,2}\d)"
)
# A sentence wrapped by its writer's mail program; a line with a number alone stays a line.
_WRAPPED = re.compile(r"(?<=[^\n]{50})(?<![.!?:。])\n(?=[^\W\d_]|\d[\d -]*[.,]? ?[^\W\d_])")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n")

_DIGIT_GROUPS = re.compile(r"(?<![A-Za-z0-9-])\d+(?:[ -]\d+)+")
_SPLIT_CODE = re.compile(r"\d{3}[ -]\d{3}|\d{4}[ -]\d{4}|\d\d(?:[ -]\d\d){2,3}")
_STRUCK = " \0 "

_LETTER = r"A-Za-zÀ-ӿ"
_CODE_SHAPE = r"\d{3} \d{3}|\d{4} \d{4}|\d\d(?: \d\d){2,3}|[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_TOKEN = re.compile(
    rf"(?<![{_LETTER}0-9@/\\&+-])(?<!\w_)(?:{_CODE_SHAPE})(?![{_LETTER}0-9@/\\%+]|[-_]\w|\*\*)"
)
_CAPTION_BELOW = re.compile(rf"(?:{IS}|enter|use|this)(?!\w)|[^:：]{{1,40}}$", re.IGNORECASE)
_ALONE = re.compile(rf"[^\w\0]*({_CODE_SHAPE})[^\w\0]*")
_PREFIXED = re.compile(r"[A-Z]{1,2}-(\d{4,8})")
_YEAR = re.compile(r"(?:19|20)\d\d")
_TOWN = re.compile(r" [A-ZÀ-Þ][a-zà-ÿ]")
_NAME = re.compile(r"(?:.*-)?[a-z]{2,}(?:-.*)?|[A-Za-z]+-\d{1,3}")  # python3-doc, SHA-256
_CONSONANTS = re.compile(r"[B-DF-HJ-NP-TV-XZ]{4}-[B-DF-HJ-NP-TV-XZ]{4}")  # RFC 8628, section 6.1
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"\d{3}")
_SWITCH = re.compile(r"(?<=\d)-?(?=[A-Za-z])|(?<=[A-Za-z])-?(?=\d)")
# What leads to a code: "code: X", "code is X", "X is your code".
_BINDS_BEFORE = re.compile(
    rf"(?:^|[:：=>—–-]|(?<!\w){IS}|[は为為是는은])(?: l[ea])?[\s\"'“„‘«*_\[(<【「#:：]*$",
    re.IGNORECASE,
)
_BINDS_AFTER = re.compile(rf"[\s\"'”’»*_\])>】」,]*(?:[—–-]|{IS}(?!\w)|[は是为為])", re.IGNORECASE)
_JOINS = re.compile(r"\s*(?:[,/;&和と]|and|or|und|oder|et|ou|y|o|e|и|или)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A token that could be a code; a doubtful one needs its word right beside it."""

    start: int
    end: int
    code: str
    is_doubtful: bool


def find_codes(subject: str, text: str) -> tuple[str, ...]:
    """The one-time codes as one would type them, in order, without duplicates, at most ten."""
    mail = f"{' '.join(subject[:MAX_SUBJECT_CHARS].split())}\n\n{text[:MAX_TEXT_CHARS]}"
    near = _near_cues(_normalise(mail))
    lines = [line for line in _strike_out(near).split("\n") if line.strip()]
    codes = dict.fromkeys(code for found in _codes_by_line(lines) for code in found)
    return tuple(codes)[:MAX_CODES]


def _normalise(text: str) -> str:
    plain = text.translate(_TO_ASCII).replace("\r\n", "\n")
    plain = _SPREAD_DIGITS.sub(lambda match: "".join(match[0].split()), plain)
    return _WRAPPED.sub(" ", plain)


def _near_cues(text: str) -> str:
    """The lines around words for a code; all others, each gap one line that nothing stands in."""
    lines = [line for line in text.split("\n") if line.strip()]
    near = {
        index
        for cue, line in enumerate(lines)
        if CUE.search(line) or BARE_CUE.search(line)
        for index in range(cue - CONTEXT_LINES, cue + CONTEXT_LINES + 1)
    }
    kept = [line if index in near else _STRUCK for index, line in enumerate(lines)]
    return "\n".join(line for line, _ in groupby(kept))


def _strike_out(text: str) -> str:
    for pattern in STRIKE_OUT:
        text = pattern.sub(_STRUCK, text)
    return _DIGIT_GROUPS.sub(
        lambda match: match[0] if _SPLIT_CODE.fullmatch(match[0]) else _STRUCK, text
    )


def _codes_by_line(lines: list[str]) -> list[list[str]]:
    """For each line the codes in it: beside a word for a code, or alone below or above one."""
    sentences = [_SENTENCE_END.split(line) for line in lines]
    found = [[code for part in parts for code in _beside_cue(part)] for parts in sentences]
    alone = [_alone(parts[0]) for parts in sentences]
    for index, parts in enumerate(sentences):
        if not found[index] and any(map(_cues, parts)):
            found[index] = [code for part in parts if (code := _alone(part))]
            for taken in () if found[index] else _lines_of_cue(index, lines[index], alone):
                found[taken] = [str(alone[taken])]
    return found


def _lines_of_cue(index: int, line: str, alone: list[str | None]) -> Iterator[int]:
    """The lines with nothing but a code that belong to the word for it in line `index`."""
    below = range(index + 1, min(index + 1 + REACH_LINES, len(alone)))
    first = next((number for number in below if alone[number]), None)
    if first is not None:
        ahead = range(first, min(first + MAX_CODES, len(alone)))
        yield from takewhile(lambda number: alone[number], ahead)
    elif index and alone[index - 1] and _CAPTION_BELOW.match(line):
        yield index - 1


def _beside_cue(sentence: str) -> list[str]:
    cues = _cues(sentence)
    if not cues:
        return []
    has_purpose = bool(CUE.search(sentence) or PURPOSE.search(sentence))
    near: list[_Candidate] = []
    bound: list[_Candidate] = []
    for candidate in _candidates(sentence):
        before, after = _gaps(sentence, cues, candidate)
        if candidate.is_doubtful and not has_purpose:
            continue
        if _binds(before, after) or (bound and _joins(sentence, bound[-1], candidate)):
            bound.append(candidate)
        elif has_purpose and not candidate.is_doubtful and (before, after) != (None, None):
            near.append(candidate)
    return [candidate.code for candidate in bound or near]


def _cues(sentence: str) -> list[tuple[int, int]]:
    """Where the words for a code stand, in order."""
    cues = [match.span() for match in CUE.finditer(sentence)]
    if not cues and OFFER.search(sentence):
        return []
    return sorted([*cues, *(match.span() for match in BARE_CUE.finditer(sentence))])


def _gaps(
    sentence: str, cues: list[tuple[int, int]], candidate: _Candidate
) -> tuple[str | None, str | None]:
    """What stands between a candidate and the nearest cue before and after it, if in reach."""
    place = bisect(cues, (candidate.start, candidate.start))
    end_before = cues[place - 1][1] if place else -REACH_CHARS - 1
    start_after = cues[place][0] if place < len(cues) else len(sentence) + REACH_CHARS + 1
    is_near_before = candidate.start - end_before <= REACH_CHARS
    is_near_after = start_after - candidate.end <= REACH_CHARS
    return (
        sentence[end_before : candidate.start] if is_near_before else None,
        sentence[candidate.end : start_after] if is_near_after else None,
    )


def _binds(before: str | None, after: str | None) -> bool:
    """Whether the word leads straight to the code or the code to the word; no number between."""
    return bool(
        (before is not None and _BINDS_BEFORE.search(before) and not _NUMBER.search(before))
        or (after is not None and _BINDS_AFTER.match(after) and not _NUMBER.search(after))
    )


def _joins(sentence: str, former: _Candidate, candidate: _Candidate) -> bool:
    return bool(_JOINS.fullmatch(sentence, former.end, candidate.start))


def _alone(sentence: str) -> str | None:
    match = _ALONE.fullmatch(sentence)
    code = _as_typed(match[1]) if match else None
    return None if code is None or _YEAR.fullmatch(code) else code


def _candidates(sentence: str) -> Iterator[_Candidate]:
    for match in _TOKEN.finditer(sentence):
        code = _as_typed(match[0])
        if code is not None:
            is_zip = len(code) <= 5 and _TOWN.match(sentence, match.end())
            yield _Candidate(match.start(), match.end(), code, bool(is_zip) or _is_doubtful(code))


def _as_typed(token: str) -> str | None:
    """The code that a token stands for, or None if it cannot be one."""
    digits = token.replace(" ", "").replace("-", "")
    prefixed = _PREFIXED.fullmatch(token)
    if prefixed:
        return prefixed[1]
    if digits.isdigit():
        return digits if 4 <= len(digits) <= 8 else None
    has_digit = _DIGIT.search(token)
    is_code = (has_digit and not _NAME.fullmatch(token)) or _CONSONANTS.fullmatch(token)
    return token if is_code and 4 <= len(digits) <= MAX_MIXED_CHARS else None


def _is_doubtful(code: str) -> bool:
    """A year, or a mixed token like Windows11 and SAVE20: letters, then digits."""
    return bool(_YEAR.fullmatch(code)) or len(_SWITCH.findall(code)) == 1
