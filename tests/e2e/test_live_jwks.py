"""Tokens whose keys the server fetches: Centrifugo's JWKS, with Centrifugo's Python SDK."""

import asyncio
import base64
import json
import subprocess

import pytest

from harness import wait
from harness.live import CONFIG, live_server, token
from test_live_proxies import back_end, connected, next_of, requests, subscribing  # noqa: F401


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Key:
    """An RSA key: openssl makes it, and signs with it."""

    def __init__(self, tmp_path, kid):
        self.kid, self.file = kid, tmp_path / f"{kid}.pem"
        made = subprocess.run(["openssl", "genrsa", "-out", self.file, "2048"], capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"openssl cannot make a key: {made.stderr}")

    def public(self):
        shown = subprocess.run(["openssl", "rsa", "-in", self.file, "-noout", "-modulus"], capture_output=True, check=True)
        modulus = bytes.fromhex(shown.stdout.decode().strip().removeprefix("Modulus="))
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.kid, "n": b64(modulus), "e": "AQAB"}

    def token(self, user="ann", kid=None, **claims):
        signed = ".".join(b64(json.dumps(part).encode()) for part in
                          ({"alg": "RS256", "typ": "JWT", "kid": kid or self.kid}, {"sub": user, **claims}))
        signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.file], input=signed.encode(),
                                   capture_output=True, check=True)
        return f"{signed}.{b64(signature.stdout)}"


def test_keys_are_fetched_from_an_endpoint_that_starts_later_and_changes(make_server, tmp_path, back_end):  # noqa: F811
    first, second = Key(tmp_path, "first"), Key(tmp_path, "second")
    # The secret of the other tests is configured too, and has no effect.
    client = {**CONFIG["client"], "token": {**CONFIG["client"]["token"], "jwks_public_endpoint": back_end.url("/keys")}}
    live = live_server(make_server, tmp_path, {**CONFIG, "client": client})
    assert "other keys in client.token are not used" in live.log()
    back_end.answers = {"/keys": (503, {})}

    def fetches(what="requests_total"):
        return requests(live, "jwks", what)

    async def run():
        # The SDK reconnects by itself until the keys are available.
        ann, events = await connected(live, False, token=first.token())
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: wait.until(lambda: fetches("failures_total"), what="a fetch that fails"))
        back_end.answers["/keys"] = {"keys": [first.public()]}
        await next_of(events.connected)
        assert events.disconnected.empty()
        # The same keys verify tokens of subscriptions.
        subscription, subscription_events = await subscribing(ann, "$own", get_token=lambda _: signed(first, "$own"))
        await next_of(subscription_events.subscribed)
        known = fetches()
        bob, events = await connected(live, True, token=first.token("bob"))
        await next_of(events.connected)
        assert fetches() == known, "the server does not fetch a known key again"
        # The server finds a new key within seconds, without a restart.
        back_end.answers["/keys"] = {"keys": [second.public(), first.public()]}
        eve, events = await connected(live, False, token=second.token("eve"))
        await next_of(events.connected)
        assert fetches() == known + 1
        for session in (ann, bob, eve):
            await session.disconnect()
        for forged in (token(), second.token(kid="first"), "nonsense"):
            session, events = await connected(live, False, token=forged)
            assert (await next_of(events.disconnected)).code == 3500
        assert fetches() == known + 1

    async def signed(key, channel):
        return key.token(channel=channel)

    asyncio.run(run())


def test_subscriptions_have_keys_of_their_own(make_server, tmp_path, back_end):  # noqa: F811
    """Connections by a secret, subscriptions by fetched keys; neither accepts the tokens of the
    other."""
    key = Key(tmp_path, "own")
    back_end.answers = {"/keys": {"keys": [key.public()]}}
    own = {"enabled": True, "jwks_public_endpoint": back_end.url("/keys"), "audience": "rooms"}
    live = live_server(make_server, tmp_path, {**CONFIG, "client": {**CONFIG["client"], "subscription_token": own}})

    async def run():
        ann, events = await connected(live, True, token=token())
        await next_of(events.connected)

        async def of_own_key(_):
            return key.token(channel="$own", aud="rooms")

        subscription, subscription_events = await subscribing(ann, "$own", get_token=of_own_key)
        await next_of(subscription_events.subscribed)
        await subscription.publish(b"1")
        assert await next_of(subscription_events.publications) == 1
        for channel, refused in [("$a", token(channel="$a", aud="rooms")), ("$b", key.token(channel="$b", aud="other"))]:
            async def get_token(_, found=refused):
                return found

            _, subscription_events = await subscribing(ann, channel, get_token=get_token)
            assert (await next_of(subscription_events.unsubscribed)).code == 103
        _, events = await connected(live, False, token=key.token(aud="rooms"))
        assert (await next_of(events.disconnected)).code == 3500
        await ann.disconnect()

    asyncio.run(run())
    assert requests(live, "jwks", proxy="subscription_token") == 1 and requests(live, "jwks") is None


def test_a_template_as_endpoint_is_refused_with_a_remedy(make_server, tmp_path):
    client = {"token": {"jwks_public_endpoint": "https://keys.example.com/{{realm}}/certs"}}
    with pytest.raises(Exception) as refused:
        live_server(make_server, tmp_path, {**CONFIG, "client": client})
    assert "{{realm}}" in str(refused.value) and "issuer_regex and audience_regex have no group" in str(refused.value)
