"""A stand-in on this machine for the hub's interface: repositories, commits, files; no access control."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants


@dataclass
class Repository:
    """Commits by id, in order; each maps names to the bytes of its files."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})

    @property
    def newest(self) -> str:
        return list(self.commits)[-1]


@dataclass
class Hub:
    """The stand-in's repositories, the requests that it got, and the status that it answers all with, if any."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    status: int | None = None


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def json(self, value: Any, status: int = 200) -> None:
            self.answer(json.dumps(value).encode(), status, Content_Type="application/json")

        def missing(self) -> None:
            self.answer(b"{}", 404, X_Error_Code="RepoNotFound")

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.requests.append(f"{self.command} {path}")
            if hub.status is not None:
                self.json({"error": f"no, {hub.url}"}, hub.status)
            elif path == "api/repos/create":
                self.create(json.loads(body))
            elif path == "api/validate-yaml":
                self.json({"errors": [], "warnings": []})
            elif path.startswith("lfs/"):
                hub.objects[path.removeprefix("lfs/")] = body
                self.answer(b"")
            elif path.endswith("/info/lfs/objects/batch"):
                self.batch(json.loads(body))
            elif path.startswith("api/models/"):
                self.model(path.removeprefix("api/models/").split("/"), body)
            else:
                self.file(path.split("/"))

        do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815

        def create(self, wanted: dict[str, Any]) -> None:
            name = f"{wanted['organization']}/{wanted['name']}" if wanted.get("organization") else wanted["name"]
            if name in hub.repositories:
                self.json({"error": "exists", "url": f"{hub.url}/{name}"}, 409)
                return
            hub.repositories[name] = Repository(bool(wanted.get("private", wanted.get("visibility") == "private")))
            self.json({"url": f"{hub.url}/{name}", "name": name})

        def batch(self, wanted: dict[str, Any]) -> None:
            objects = [
                {**one, "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}} for one in wanted["objects"]
            ]
            self.json({"transfer": "basic", "objects": objects})

        def model(self, parts: list[str], body: bytes) -> None:
            repository = hub.repositories.get("/".join(parts[:2]))
            if repository is None:
                self.missing()
            elif parts[2:3] == ["preupload"]:
                files = json.loads(body)["files"]
                self.json({"files": [
                    {"path": one["path"], "shouldIgnore": False,
                     "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular"} for one in files
                ]})  # fmt: skip
            elif parts[2:3] == ["commit"]:
                self.commit("/".join(parts[:2]), [json.loads(line) for line in body.splitlines()])
            elif parts[2:3] == ["tree"]:
                files = repository.commits[repository.newest]
                self.json([
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in files.items()
                ])  # fmt: skip
            else:
                self.json({"id": "/".join(parts[:2]), "sha": repository.newest, "private": repository.private,
                           "tags": [], "downloads": 0, "likes": 0, "siblings": []})  # fmt: skip

        def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
            repository = hub.repositories[name]
            files = dict(repository.commits[repository.newest])
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.objects[value["oid"]]
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            commit = hashlib.sha1(str(len(repository.commits)).encode()).hexdigest()
            repository.commits[commit] = files
            self.json({"commitUrl": f"{hub.url}/{name}/commit/{commit}", "commitOid": commit, "pullRequestUrl": None})

        def file(self, parts: list[str]) -> None:
            repository = hub.repositories.get("/".join(parts[:2]))
            files = {} if repository is None else repository.commits.get(parts[3], {})
            name = "/".join(parts[4:])
            if name not in files:
                self.missing()
                return
            self.answer(files[name], ETag=f'"{hashlib.sha1(files[name]).hexdigest()}"', X_Repo_Commit=parts[3])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def serving_hub(patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub on a free port, and have the client library use it."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    patch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
