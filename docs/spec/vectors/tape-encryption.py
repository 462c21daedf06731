#!/usr/bin/env python3
"""Test vectors for docs/spec/tape-encryption.md, computed from its text: prints tape-encryption.json.

It uses the primitives of the `cryptography` package, version 44 or later (pip install cryptography),
and shares nothing with the program.
"""

import hashlib
import hmac
import json
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id


def mac(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def hkdf(salt, secret, info):
    pseudorandom = mac(salt, secret)
    first = mac(pseudorandom, info + b"\x01")
    return first, mac(pseudorandom, first + info + b"\x02")


def record(key, number, last, data, zeroes):
    nonce = bytes(3) + struct.pack(">QB", number, last)
    return AESGCM(key).encrypt(nonce, struct.pack(">I", len(data)) + data + bytes(zeroes), None)


def file(name, passphrase, block, cost, data, fill):
    memory, passes, lanes = cost
    salt = hashlib.sha256(b"salt of " + name.encode()).digest()
    file_key = hashlib.sha256(b"key of " + name.encode()).digest()
    passphrase_key = Argon2id(
        salt=salt, length=32, iterations=passes, lanes=lanes, memory_cost=memory
    ).derive(passphrase)
    record_key, confirmation = hkdf(salt, file_key, b"longhaul tape file 1")
    head = b"LHTCRY\r\n" + struct.pack(">IIIIII", 1, block, memory, passes, lanes, 0)
    head += salt + confirmation
    assert len(head) == 96
    head += AESGCM(passphrase_key).encrypt(bytes(12), file_key, head)
    blocks = [head + bytes(block - len(head))]
    room = block - 20
    # Full records but the last, which has at least one byte unless there is none at all.
    full = max(0, len(data) - 1) // room
    for number in range(full):
        blocks.append(record(record_key, number, 0, data[number * room :][:room], 0))
    rest = data[full * room :]
    blocks.append(record(record_key, full, 1, rest, room - len(rest) if fill else 0))
    return {
        "name": name,
        "passphrase": passphrase.hex(),
        "block": block,
        "memory": memory,
        "passes": passes,
        "lanes": lanes,
        "fill": fill,
        "salt": salt.hex(),
        "file_key": file_key.hex(),
        "passphrase_key": passphrase_key.hex(),
        "record_key": record_key.hex(),
        "data": data.hex(),
        "blocks": [block.hex() for block in blocks],
    }


def text(length):
    return bytes((7 * at + at // 256) % 256 for at in range(length))


phrase = b"correct horse battery staple"
print(
    json.dumps(
        [
            file("empty", phrase, 256, (32, 4, 1), b"", False),
            file("one short record", phrase, 512, (64, 1, 1), b"plain text", False),
            file("three records", phrase, 256, (64, 2, 4), text(600), False),
            file("two full records", "käse\n".encode(), 256, (32, 3, 2), text(472), False),
            file("filled up", bytes(range(64)), 512, (128, 1, 1), text(500), True),
        ],
        indent=1,
    )
)
