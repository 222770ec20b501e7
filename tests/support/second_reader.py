"""A second reader, written from docs/reference/format.md alone, in another style, against which the real one is checked."""

import hashlib
import json
import re
from typing import Any

STRUCTURAL = re.compile(rb"=== |--- |\[[A-Z]")
ESCAPED = re.compile(rb"\\+(?:=== |--- |\[[A-Z])")
SEAL = re.compile(rb"\[End ([0-9a-f]{16})\]")
TORN = re.compile(rb"\n=== TORN ([1-9][0-9]{0,17}) ===\n\n\Z")
FORMAT = re.compile(rb"Format: [0-9]+")
FIELD = re.compile(rb"([A-Z][A-Za-z0-9]*(?:[ -][A-Za-z0-9]+)*):(?: (.*))?", re.DOTALL)
BODY_NEEDS_JSON = re.compile("[\0\ud800-\udfff]")
FIELD_NEEDS_JSON = re.compile("[\0-\x08\x0b-\x1f\x7f\ud800-\udfff]")
HEADER_LIMIT = 65_536
NO_SEAL = "0" * 16


def split_lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def text_of(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def body_of(lines: list[bytes]) -> str:
    body = b"".join(line[1:] if ESCAPED.match(line) else line for line in lines)
    return text_of(body.removesuffix(b"\n").removesuffix(b"\n"))


def from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def undo_json(name: str, text: str, needs_json: re.Pattern[str]) -> list[str]:
    value = from_json(text) if name.endswith(" json") else None
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "".join(value)
    if isinstance(value, str) and needs_json.search(value):
        return [name.removesuffix(" json"), value]
    return [name, text]


def undo_item(item: str) -> str:
    value = from_json(item)
    if isinstance(value, str):
        return value
    split_pair = isinstance(value, list) and all(isinstance(part, str) for part in value)
    joined = "".join(value) if split_pair else ""
    return joined if re.search("[\ud800-\udbff][\udc00-\udfff]", joined) else item


def read_section(heading: bytes, lines: list[bytes]) -> list[str]:
    if not heading.endswith(b"]"):
        return [text_of(heading), body_of(lines)]
    return undo_json(text_of(heading[:-1]), body_of(lines), BODY_NEEDS_JSON)


def read_block(marker: str, lines: list[bytes]) -> dict[str, Any]:
    fields: list[list[Any]] = []
    user: list[list[Any]] = []
    text = ""
    for number, raw in enumerate(lines if marker == "=== REQUEST ===" else []):
        line = raw.removesuffix(b"\n")
        field = FIELD.fullmatch(line)
        if field and field[1] in (b"User", b"User json"):
            # What stands on the first line is at no line's start in the file, so it is never escaped.
            value = text_of(field[2] or b"") + body_of([raw[len(line) :], *lines[number + 1 :]])
            user = [[*undo_json(text_of(field[1]), value, BODY_NEEDS_JSON), []]]
            lines = lines[:number]
            break
    for number, raw in enumerate(lines):
        line, following = raw.removesuffix(b"\n"), lines[number + 1 :]
        field = FIELD.fullmatch(line)
        if field:
            fields.append([text_of(field[1]), text_of(field[2] or b""), []])
        elif (line + b" ").startswith(b"  | ") and fields and not fields[-1][2]:
            fields[-1][1] += "\n" + text_of(line[4:])
        elif (line + b" ").startswith(b"  - ") and fields:
            item = text_of(line[4:])
            fields[-1][2].append(undo_item(item))
        else:
            rest = [raw, *following] if line else following
            text = body_of(rest) if any(rest_line != b"\n" for rest_line in rest) else ""
            break
    decoded_fields = [[*undo_json(name, value, FIELD_NEEDS_JSON), items] for name, value, items in fields]
    return {"marker": marker, "fields": decoded_fields + user, "sections": [["", text]] if text else []}


def read_blocks(data: bytes) -> list[dict[str, Any]]:
    openings: list[tuple[bytes, list[bytes]]] = []
    for line in split_lines(data):
        if STRUCTURAL.match(line):
            openings.append((line.removesuffix(b"\n"), []))
        elif openings:
            openings[-1][1].append(line)
    blocks: list[dict[str, Any]] = []
    inside = False
    for opening, lines in openings:
        if SEAL.fullmatch(opening):
            inside = False
            continue
        if not opening.startswith(b"["):
            blocks.append(read_block(text_of(opening), lines))
        else:
            if not inside:
                blocks.append(read_block("=== ===", []))
            blocks[-1]["sections"].append(read_section(opening[1:], lines))
        inside = True
    return blocks


def read_header(data: bytes) -> tuple[bool, list[tuple[int, int]]]:
    """Whether the file is sealed, and where its copied values stand."""
    first, *following = split_lines(data[:HEADER_LIMIT]) or [b""]
    sealed, offset = False, len(first)
    copied: dict[bytes, tuple[int, int]] = {}
    for line in following if first.startswith(b"=== TASK ") else []:
        content, end = line.removesuffix(b"\n"), offset + len(line)
        if not content or STRUCTURAL.match(content):
            break
        sealed = sealed or FORMAT.fullmatch(content) is not None
        for prefix in (b"Status: ", b"Duration: "):
            if content.startswith(prefix):
                copied.setdefault(prefix, (offset + len(prefix), offset + len(content)))
        offset = end
    return sealed, sorted(copied.values()) if sealed else []


def torn_length(record: bytes) -> int | None:
    marker = TORN.search(record)
    return int(marker[1]) if marker and int(marker[1]) == marker.start() else None


def read(data: bytes) -> dict[str, Any]:
    sealed, copied = read_header(data)
    records: list[dict[str, Any]] = []

    def digits_over(previous: str, start: int, end: int) -> str:
        kept = b""
        for value_start, value_end in copied:
            if start <= value_start and value_end <= end:
                kept, start = kept + data[start:value_start], value_end
        return hashlib.sha256(previous.encode() + kept + data[start:end]).hexdigest()[:16]

    def report(kind: str, start: int, content_end: int, end: int, seal: str | None, torn: int = 0) -> None:
        blocks = read_blocks(data[start + torn + 1 if kind == "torn" else start : content_end])
        record = {"kind": kind, "offset": start, "length": end - start, "seal": seal, "torn": torn, "blocks": blocks}
        records.append(record)

    anchor, base, start, offset = NO_SEAL, 0, 0, 0
    previous = [NO_SEAL]
    unmatched: list[tuple[int, int, int, str]] = []
    for line in split_lines(data):
        line_start, offset = offset, offset + len(line)
        seal = SEAL.fullmatch(line.removesuffix(b"\n"))
        if not seal:
            continue
        digits = seal[1].decode()
        since_seal = [digits_over(known, start, line_start) for known in previous]
        adopts = not sealed and base == 0
        runs_on = adopts or torn_length(data[base:line_start]) is not None
        since_match = [digits_over(anchor, base, line_start)] if runs_on else []
        if digits not in since_seal + since_match:
            unmatched.append((start, line_start, offset, digits))
            previous, start = [digits, since_seal[0]], offset
            continue
        first = base
        if digits in since_seal:
            first = start
            for damaged in unmatched:
                report("damaged", *damaged)
        torn = None if adopts and first == 0 else torn_length(data[first:line_start])
        report("sealed" if torn is None else "torn", first, line_start, offset, digits, torn or 0)
        anchor, base, start, previous, unmatched = digits, offset, offset, [digits], []

    if not sealed and base == 0:
        for unsealed in unmatched:
            report("unsealed", *unsealed)
        if start < len(data):
            report("unsealed", start, len(data), len(data), None)
        return {"sealed": sealed, "records": records}
    if b"\0" not in data[base:]:
        # An unfinished append holds no seal of its own.
        for damaged in unmatched:
            if data[damaged[2] - 1 : damaged[2]] == b"\n":
                report("damaged", *damaged)
                base = damaged[2]
    if base < len(data):
        report("tail", base, len(data), len(data), None, len(data) - base)
    return {"sealed": sealed, "records": records}
