#!/usr/bin/env python3
"""Test vectors for docs/spec/sealed-iscsi.md, computed from its text: prints sealed-iscsi.json.

It follows the Noise specification (revision 34, section 5) step by step, on the primitives of the
`cryptography` package (pip install cryptography), and shares nothing with the program.
"""

import base64
import hashlib
import hmac
import json

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def mac(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def expand(secret, info):
    return mac(secret, info + b"\x01")


class Key:
    def __init__(self, secret):
        self.secret = secret
        self.private = X25519PrivateKey.from_private_bytes(secret)
        self.public = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def dh(self, public):
        return self.private.exchange(X25519PublicKey.from_public_bytes(public))


class Symmetric:
    """SymmetricState of the Noise specification, 5.2, with the CipherState it holds."""

    def __init__(self, name):
        assert len(name) == 32
        self.h = self.ck = name
        self.k, self.n = None, 0

    def mix_hash(self, data):
        self.h = hashlib.sha256(self.h + data).digest()

    def two(self, data):
        temp = mac(self.ck, data)
        first = mac(temp, b"\x01")
        return first, mac(temp, first + b"\x02")

    def mix_key(self, data):
        self.ck, self.k = self.two(data)
        self.n = 0

    def encrypt_and_hash(self, plain):
        nonce = bytes(4) + self.n.to_bytes(8, "little")
        text = ChaCha20Poly1305(self.k).encrypt(nonce, plain, self.h)
        self.n += 1
        self.mix_hash(text)
        return text


def handshake(client, target, client_ephemeral, target_ephemeral):
    """IK: <- s ... -> e, es, s, ss <- e, ee, se. One pass, since both sides compute the same."""
    state = Symmetric(b"Noise_IK_25519_ChaChaPoly_SHA256")
    state.mix_hash(b"dev.longhaul.sealed-iscsi.1")
    state.mix_hash(target.public)

    state.mix_hash(client_ephemeral.public)
    state.mix_key(client_ephemeral.dh(target.public))
    static = state.encrypt_and_hash(client.public)
    state.mix_key(client.dh(target.public))
    first = client_ephemeral.public + static + state.encrypt_and_hash(b"")

    state.mix_hash(target_ephemeral.public)
    state.mix_key(target_ephemeral.dh(client_ephemeral.public))
    state.mix_key(target_ephemeral.dh(client.public))
    second = target_ephemeral.public + state.encrypt_and_hash(b"")
    return first, second, state.h, state.two(b"")


def text(prefix, key):
    check = hashlib.sha256(prefix + key).digest()[:4]
    return (prefix + base64.urlsafe_b64encode(key + check).rstrip(b"=")).decode()


def part(key, protection, number, which, data):
    nonce = bytes(4) + (2 * number + which).to_bytes(8, "big")
    if protection == "encrypt":
        return AESGCM(key).encrypt(nonce, data, None)
    return data + AESGCM(key).encrypt(nonce, b"", data)


def pdu(key, protection, number, header, body):
    sealed = part(key, protection, number, 0, header)
    return sealed + (part(key, protection, number, 1, body) if body else b"")


def invitation(secret, server, name, target, lun, addresses):
    """The line of section 7."""
    def field(value):
        return bytes([len(value)]) + value.encode()

    fields = b"\x01" + server + secret + lun.to_bytes(2, "big") + field(target) + field(name)
    fields += bytes([len(addresses)]) + b"".join(field(address) for address in addresses)
    return text(b"longhaul:", fields)


def main():
    client, target = Key(bytes(range(32))), Key(bytes(range(32, 64)))
    ephemerals = Key(bytes(range(64, 96))), Key(bytes(range(96, 128)))
    first, second, h, (k1, k2) = handshake(client, target, *ephemerals)
    label = b"longhaul sealed-iscsi 1: "
    master = mac(h, k1 + k2)

    invited = {
        "secret": bytes(range(128, 144)),
        "name": "laptop",
        "target": "iqn.2026-11.dev.longhaul:backup",
        "lun": 3,
        "addresses": ["192.0.2.1:3260", "[2001:db8::1]:3261", "server.example:3260"],
    }
    prk = mac(bytes(32), invited["secret"])
    invited_id = expand(prk, label + b"invitation")[:16]
    invited_master = mac(h, k1 + k2 + invited["secret"])

    before = [hashlib.sha256(b"request 1").digest(), hashlib.sha256(b"response 1").digest()]
    login = [
        hashlib.sha256(b"request 1request 2").digest(),
        hashlib.sha256(b"response 1response 2").digest(),
    ]
    cid = 3
    streams = []
    for direction in (b"I", b"T"):
        for protection, byte in (("integrity", 1), ("encrypt", 2)):
            place = direction + bytes([byte]) + cid.to_bytes(2, "big")
            secret = expand(master, label + b"traffic" + place + b"".join(login))
            keys, number, pdus = [], 0, []
            # Under each of three keys: a header alone, a header with a body, then the change of keys.
            for epoch in range(3):
                key = expand(secret, label + b"key")
                secret = expand(secret, label + b"next")
                keys.append(key.hex())
                for size in (0, 5 + 300 * epoch):
                    opcode = 0x01 if direction == b"I" else 0x25
                    header = bytes([opcode, 0x80, 0, 0, 0]) + size.to_bytes(3, "big")
                    header += bytes((7 * number + i) % 256 for i in range(40))
                    body = bytes((11 * number + i) % 256 for i in range(size))
                    sealed = pdu(key, protection, number, header, body)
                    pdus.append(
                        {"header": header.hex(), "body": body.hex(), "sealed": sealed.hex()}
                    )
                    number += 1
                rekey = bytes([0x5E if direction == b"I" else 0x3E, 0x80]) + bytes(46)
                pdus.append({"rekey": True, "sealed": pdu(key, protection, number, rekey, b"").hex()})
                number += 1
            streams.append(
                {
                    "direction": direction.decode(),
                    "protection": protection,
                    "cid": cid,
                    "keys": keys,
                    "pdus": pdus,
                }
            )

    print(
        json.dumps(
            {
                "client": {
                    "secret": client.secret.hex(),
                    "secret_text": text(b"lhsec1-", client.secret),
                    "public": client.public.hex(),
                    "public_text": text(b"lhpub1-", client.public),
                },
                "target": {
                    "secret": target.secret.hex(),
                    "public": target.public.hex(),
                    "public_text": text(b"lhpub1-", target.public),
                },
                "ephemerals": [ephemeral.secret.hex() for ephemeral in ephemerals],
                "messages": [first.hex(), second.hex()],
                "handshake_hash": h.hex(),
                "master": master.hex(),
                "before_proof": [hash.hex() for hash in before],
                "proof": expand(master, label + b"proof" + b"".join(before)).hex(),
                "login": [hash.hex() for hash in login],
                "invitation": {
                    **invited,
                    "secret": invited["secret"].hex(),
                    "text": invitation(server=target.public, **invited),
                    "id": invited_id.hex(),
                    "master": invited_master.hex(),
                    "proof": expand(invited_master, label + b"proof" + b"".join(before)).hex(),
                },
                "streams": streams,
            },
            indent=1,
        )
    )


main()
