"""A double of Google's sign-in, and keys of service accounts for it."""

import json
import socket
from base64 import urlsafe_b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from psyche.wire.web import serve_app

KEY: Final = rsa.generate_private_key(65_537, 2_048)


class SignIn:
    """Google's sign-in: checks the statement of an account and gives a token."""

    def __init__(self) -> None:
        self.address = ""
        self.claims: list[dict[str, Any]] = []

    async def app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        form = parse_qs((await receive())["body"].decode())
        head, claims, signature = form["assertion"][0].split(".")
        raw = urlsafe_b64decode(signature + "==")
        KEY.public_key().verify(raw, f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
        assert json.loads(urlsafe_b64decode(head + "==")) == {"alg": "RS256", "typ": "JWT", "kid": "7"}
        assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
        self.claims.append(json.loads(urlsafe_b64decode(claims + "==")))
        body = json.dumps({"access_token": f"token-{len(self.claims)}", "expires_in": 3_599}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def open_sign_in() -> AsyncGenerator[SignIn]:
    sign_in, listening = SignIn(), socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    sign_in.address = f"http://127.0.0.1:{listening.getsockname()[1]}/token"
    async with serve_app(sign_in.app, listening):
        yield sign_in


def write_key(path: Path, **changes: Any) -> Path:
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = changes.pop("key", KEY).private_bytes(pem, form, serialization.NoEncryption()).decode()
    key = {
        "type": "service_account", "client_email": "me@project.example", "private_key": private, "private_key_id": "7",
        "token_uri": "https://sign-in.example/token", "project_id": "project",
    }  # fmt: skip
    path.write_text(json.dumps(key | changes))
    return path
