import time

import pytest
from cryptography.fernet import InvalidToken
from standardwebhooks import Webhook

from registry.signing import cipher, new_signing_secret, secret_bytes, signature_headers


def test_others_verify_what_is_signed():
    secret, body = new_signing_secret(), b'{"probe":true}'
    headers = signature_headers(secret, "msg_1", int(time.time()), body)
    assert Webhook(secret).verify(body, headers) == {"probe": True}


def test_a_decoded_secret_signs_alike():
    secret = new_signing_secret()
    assert signature_headers(secret, "m", 1, b"x") == signature_headers(secret_bytes(secret), "m", 1, b"x")


def test_secrets_differ_and_are_long_enough():
    first, second = new_signing_secret(), new_signing_secret()
    assert first != second
    assert first.startswith("whsec_")
    assert len(secret_bytes(first)) == 24


def test_a_secret_key_given_later_still_reads_what_was_stored_before():
    before = cipher("", "installation").encrypt(b"whsec_x")
    after = cipher("given", "installation")
    assert after.decrypt(before) == b"whsec_x"
    with pytest.raises(InvalidToken):
        cipher("", "installation").decrypt(after.encrypt(b"whsec_y"))
