"""A page that reads itself: each forbidden feature of our pages is an assertion."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from taso_mirage.report.pages import page_script


class Page(HTMLParser):
    """Tags that do not close, ids, links, references that would leave the page, and scripts: none
    but the page's own, which its policy names by its digest, and data that no browser runs."""

    VOID = frozenset({"meta", "br", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.data: list[str] = []
        self.of_data = False
        self.policy = ""
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)
        assert {link[1:] for link in self.links} <= set(self.ids)
        assert not {"link", "img", "iframe", "object", "base"} & set(self.tags)
        assert self.scripts == [page_script()] * ("script-src" in self.policy)
        assert all(json.loads(each) is not None for each in self.data)
        digest = base64.b64encode(hashlib.sha256("".join(self.scripts).encode()).digest()).decode()
        named = f"; script-src 'sha256-{digest}'; img-src data:" if self.scripts else ""
        assert self.policy in ("", f"default-src 'none'; style-src 'unsafe-inline'{named}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.of_data = tag == "script" and ("type", "application/json") in attrs
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "meta" and ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""
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
        script = self.data if self.of_data else self.scripts
        (script if self.open[-1:] == ["script"] else self.text).append(data)
