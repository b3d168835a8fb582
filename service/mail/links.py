"""The web links of a mail: anchors of its HTML with their text, then URLs standing in text.

Pure. HTML takes one linear pass over libxml2's parser events; markup nested beyond sense gives the
links up to there. Nothing here raises, follows or fetches anything.
"""
# ruff: noqa: RUF001 - other scripts' punctuation ends a URL too

import re
from collections.abc import Mapping

from service.mail.readable import MAX_NESTING, UNREADABLE, TooDeep, feed_html
from service.model import Link

MAX_LINKS = 500
# The longest URL that browsers and servers agree on is far below; data hides beyond it.
MAX_URL_CHARS = 8192
MAX_TEXT_CHARS = 500

_WEB = re.compile(r"https?://[^\s/?#]", re.IGNORECASE)
# RFC 3986, appendix C: a URL in <> may be broken over lines. Elsewhere it ends at a space, a
# quote, a bracket of prose or the punctuation of a script that is written without spaces.
_IN_TEXT = re.compile(
    r"<(?P<broken>https?://[^\s<>]+(?:[ \t]*\r?\n[ \t]*[^\s<>]+)*)>"
    r"|(?<![a-z0-9])(?P<bare>https?://[^\s<>\"`“”„«»。、，；（）「」『』【】《》]+)",
    re.IGNORECASE,
)
_TRAILING = frozenset(".,;:!?'\")]}>’‘…")
_BREAKS = re.compile(r"[\t\r\n]+")
_DROPPED = frozenset({"script", "style", "svg", "template", "title"})
_BREAKING = frozenset({"br", "div", "h1", "h2", "h3", "li", "p", "table", "td", "tr"})
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_TINY_STYLE = re.compile(r"(?<![\w-])(?:width|height)\s*:\s*[01](?:\.\d*)?(?:px)?\s*(?:;|!|$)")
_TINY_SIZE = re.compile(r"\s*[01](?:\.\d*)?\s*(?:px)?\s*")


def find_links(text: str, html: str | None) -> tuple[Link, ...]:
    """The links in the order in which they stand, each URL once, at most `MAX_LINKS`.

    Of the same URLs the first one with a text stays, else the first.
    """
    links = _Links()
    if html is not None:
        _read_html(html, links)
    links.add_bare(text)
    return links.found()


class _Links:
    """The links so far; a URL is there once."""

    def __init__(self) -> None:
        self._text_by_url: dict[str, str] = {}

    def add(self, url: str, text: str) -> None:
        known = self._text_by_url.get(url)
        if known is None and len(self._text_by_url) < MAX_LINKS and _is_web(url):
            self._text_by_url[url] = text
        elif known == "" and text:
            del self._text_by_url[url]
            self._text_by_url[url] = text

    def add_bare(self, text: str) -> None:
        for match in _IN_TEXT.finditer(text):
            broken = match["broken"]
            self.add("".join(broken.split()) if broken else _trim(match["bare"]), "")

    def found(self) -> tuple[Link, ...]:
        return tuple(Link(url, text) for url, text in self._text_by_url.items())


class _Anchor:
    """An open `<a>`: its URL and what a reader sees of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pieces: list[str] = []
        self.has_image = self.has_pixel = False

    def add_image(self, attributes: Mapping[str, str]) -> None:
        if _is_pixel(attributes):
            self.has_pixel = True
        else:
            self.has_image = True
            self.pieces.append(f" {attributes.get('alt', '')} ")

    def text(self) -> str:
        return _collapse("".join(self.pieces))

    def is_seen(self) -> bool:
        return bool(self.has_image or not self.has_pixel or self.text())


class _Target:
    """The parser's target: the open anchor, if any, and the text outside it since the last tag."""

    def __init__(self, links: _Links) -> None:
        self._links = links
        self._depth = self._hidden = 0
        self._anchor: _Anchor | None = None
        self._outside: list[str] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._end_text(tag)
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise TooDeep
        if self._hidden or tag in _DROPPED or (tag != "img" and _is_hidden(attributes)):
            self._hidden += 1
        elif tag == "a":
            self._end_anchor()
            self._anchor = _Anchor(_clean(attributes.get("href", "")))
        elif tag == "area":
            url, text = attributes.get("href", ""), attributes.get("alt", "")
            self._links.add(_clean(url), _collapse(text))
        elif self._anchor and tag == "img":
            self._anchor.add_image(attributes)
        elif self._anchor and tag in _BREAKING:
            self._anchor.pieces.append(" ")

    def end(self, tag: str) -> None:
        self._end_text(tag)
        self._depth -= 1
        if self._hidden:
            self._hidden -= 1
        elif tag == "a":
            self._end_anchor()

    def data(self, data: str) -> None:
        if not self._hidden:
            (self._anchor.pieces if self._anchor else self._outside).append(data)

    def close(self) -> None:
        self._end_text("")
        self._end_anchor()

    def _end_text(self, tag: str) -> None:
        if self._outside and tag != "wbr":
            self._links.add_bare("".join(self._outside))
            self._outside.clear()

    def _end_anchor(self) -> None:
        if self._anchor and self._anchor.is_seen():
            self._links.add(self._anchor.url, self._anchor.text())
        self._anchor = None


def _read_html(html: str, links: _Links) -> None:
    target = _Target(links)
    try:
        feed_html(html, target)
    except UNREADABLE:
        target.close()


def _is_web(url: str) -> bool:
    return len(url) <= MAX_URL_CHARS and bool(_WEB.match(url))


def _clean(href: str) -> str:
    """Without the white space that browsers ignore: around it, and line breaks within."""
    return _BREAKS.sub("", href).strip()


def _collapse(text: str) -> str:
    return " ".join(text.split())[:MAX_TEXT_CHARS]


def _trim(url: str) -> str:
    """Without the punctuation of the sentence; a closing parenthesis stays if it was opened."""
    unmatched = url.count(")") - url.count("(")
    end = len(url)
    while end and url[end - 1] in _TRAILING and (url[end - 1] != ")" or unmatched > 0):
        unmatched -= url[end - 1] == ")"
        end -= 1
    return url[:end]


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    return "hidden" in attributes or bool(_HIDDEN.search(attributes.get("style", "")))


def _is_pixel(attributes: Mapping[str, str]) -> bool:
    sizes = (attributes.get("width", ""), attributes.get("height", ""))
    return (
        _is_hidden(attributes)
        or any(_TINY_SIZE.fullmatch(size) for size in sizes)
        or bool(_TINY_STYLE.search(attributes.get("style", "")))
    )
