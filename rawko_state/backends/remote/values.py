"""The small values that a server keeps."""

from __future__ import annotations

from rawko_state.backends.remote.client import Http
from rawko_state.errors import ServerRefused


class RemoteValues:
    def __init__(self, http: Http) -> None:
        self._http = http

    def get(self, scope: str, key: str) -> str | None:
        try:
            return str(self._http.ask("GET", self._http.path("kv", scope, key))["value"])
        except ServerRefused as error:
            if error.status == 404:
                return None
            raise

    def set(self, scope: str, key: str, value: str) -> None:
        self._http.ask("PUT", self._http.path("kv", scope, key), data={"value": value})

    def delete(self, scope: str, key: str) -> bool:
        try:
            self._http.ask("DELETE", self._http.path("kv", scope, key))
        except ServerRefused as error:
            if error.status == 404:
                return False
            raise
        return True

    def items(self, scope: str | None = None) -> list[tuple[str, str, str]]:
        found = self._http.ask("GET", self._http.path("kv", scope=scope))["values"]
        return [(each["scope"], each["key"], each["value"]) for each in found]
