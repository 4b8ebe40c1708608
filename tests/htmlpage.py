"""A page that reads itself: what no page of ours may have is an assertion."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Tags that do not close, ids, links, and what would leave the page."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)
        assert {link[1:] for link in self.links} <= set(self.ids)
        assert not {"script", "link", "img", "iframe", "object", "base"} & set(self.tags)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "xlink:href", "action")
            if name == "style":
                assert re.fullmatch(r"--natural:\d+px", value or "")
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                assert value is not None
                assert value.startswith("#")
                self.links.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
