"""A body that was read already, for the handler that is to answer it."""

from __future__ import annotations

from trivium.frontends.asgi import Message, Receive


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives `body` once and then what really comes."""
    is_given = False

    async def receive_again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
