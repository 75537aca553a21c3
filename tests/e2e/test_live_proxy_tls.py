"""Proxies to a back end over TLS whose certificate is of a private authority, and which requires a
client certificate."""

import base64
import re
import subprocess

import pytest

from harness.live import CONFIG, live_server
from test_live_proxies import ANN, BackEnd
from test_live_transports import Stream


class Authority:
    """A certificate authority, and the certificates it signs; openssl makes them."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.certificate, self.key = self._files(name)
        self._openssl("req", "-x509", *self._new(self.certificate, self.key), "-subj", f"/CN={name}", "-addext",
                      "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")

    def signed(self, name, use, alternative):
        """A certificate and its key."""
        certificate, key = self._files(f"{self.name}-{name}")
        request, more = certificate.with_suffix(".csr"), certificate.with_suffix(".ext")
        self._openssl("req", *self._new(request, key), "-subj", f"/CN={name}")
        more.write_text(f"basicConstraints=critical,CA:FALSE\nextendedKeyUsage={use}\nsubjectAltName={alternative}\n")
        self._openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-days", "2",
                      "-extfile", more, "-out", certificate)
        return certificate, key

    def _files(self, name):
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    @staticmethod
    def _new(out, key):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-keyout", key, "-out", out]

    @staticmethod
    def _openssl(*arguments):
        made = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            pytest.skip(f"openssl cannot make a certificate: {made.stderr}")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "ours")


@pytest.fixture
def server_certificate(authority):
    return authority.signed("server", "serverAuth", "DNS:back.end")


@pytest.fixture
def client_certificate(authority):
    return authority.signed("client", "clientAuth", "DNS:steadfast")


@pytest.fixture
def back_end(authority, server_certificate):
    """A back end whose certificate is for another name than the one in its URL."""
    found = BackEnd(server_certificate, clients_of=authority.certificate)
    found.answers = {"/connect": ANN}
    yield found
    found.close()


def connects(live):
    """The answer to a connect command."""
    stream = Stream(live, "/connection/http_stream", "POST", '{"id":1,"connect":{}}')
    reply = stream.next()
    stream.close()
    return reply


@pytest.fixture
def asking(make_server, tmp_path, back_end):
    """Makes a server that connects to the back end over TLS with these settings."""
    def make(endpoint=None, **tls):
        proxy = {"enabled": True, "endpoint": endpoint or back_end.url("/connect"), "timeout": "60s",
                 "http": {"tls": {"enabled": True, **tls}}}
        config = {**CONFIG, "client": {**CONFIG["client"], "proxy": {"connect": proxy}}, "http_stream": {"enabled": True}}
        return live_server(make_server, tmp_path, config)

    return make


def test_both_sides_verify_certificates(asking, authority, client_certificate, back_end):
    certificate, key = client_certificate
    # In each of the three ways to give it: as a file, in Base64, inline.
    live = asking(server_ca_pem=str(authority.certificate), cert_pem=base64.b64encode(certificate.read_bytes()).decode(),
                  key_pem=key.read_text(), server_name="back.end")
    assert connects(live)["connect"]["data"] == {"welcome": 1}
    assert connects(live)["connect"]["data"] == {"welcome": 1}
    assert len(back_end.connections) == 1, "the connection is kept"


def test_a_back_end_with_a_wrong_certificate_gets_no_request(asking, authority, client_certificate, back_end, tmp_path):
    certificate, key = map(str, client_certificate)
    ours, others = str(authority.certificate), str(Authority(tmp_path, "others").certificate)
    for name, tls, why in [
        ("another name", {"server_ca_pem": ours, "cert_pem": certificate, "key_pem": key}, "certificate not valid for name"),
        ("another authority", {"server_ca_pem": others, "cert_pem": certificate, "key_pem": key, "server_name": "back.end"},
         "invalid peer certificate"),
        ("the system's authorities", {"cert_pem": certificate, "key_pem": key, "server_name": "back.end"},
         "invalid peer certificate"),
        # In TLS 1.3 the alert may arrive after the handshake has completed: then the client only
        # sees the connection close.
        ("no certificate", {"server_ca_pem": ours, "server_name": "back.end"}, "CertificateRequired|connection was not ready"),
    ]:
        live = asking(**tls)
        reply = connects(live)
        assert reply.get("error", {}).get("code") == 100, (name, reply, live.log())
        assert re.search(why, live.log(), re.IGNORECASE), f"{name}: {live.log()}"
        live.stop()
    assert not back_end.requests


def test_verification_can_be_turned_off(asking, client_certificate):
    certificate, key = map(str, client_certificate)
    live = asking(insecure_skip_verify=True, cert_pem=certificate, key_pem=key)
    assert connects(live)["connect"]["data"] == {"welcome": 1}
    assert "is not verified" in live.log()


@pytest.mark.parametrize("tls, reason", [
    ({"server_ca_pem": "x"}, "server_ca_pem"),
    ({"cert_pem": "gone.pem", "key_pem": "gone.key", "insecure_skip_verify": True}, "gone.pem"),
    ({"endpoint": "http://127.0.0.1:1/", "insecure_skip_verify": True}, "does not begin with https://"),
])
def test_mistakes_are_named_at_the_start(asking, tls, reason):
    with pytest.raises(Exception) as refused:
        asking(**tls)
    assert reason in str(refused.value)
