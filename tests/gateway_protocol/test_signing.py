"""Keys, registration, consent and tokens, each against a second implementation or a published vector."""

from __future__ import annotations

import json
import re

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import OKPKey

from gateway_protocol.signing import (
    BadSignature,
    MalformedKey,
    MalformedToken,
    ProviderKey,
    UnknownKey,
    b64url,
    jwks,
    make_jws,
    mint_provider_id,
    origin_of,
    registration_bytes,
    sign_consent,
    sign_registration,
    thumbprint,
    unb64url,
    verify_consent,
    verify_jws,
    verify_registration,
    verify_signature,
)

# RFC 8037, appendix A: key, thumbprint, and the signature of its example.
RFC_SECRET = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"
RFC_PUBLIC = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
RFC_THUMBPRINT = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
RFC_SIGNING_INPUT = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
RFC_SIGNATURE = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"

TYP = "test+jwt"


def key_of(secret: str) -> ProviderKey:
    return ProviderKey(Ed25519PrivateKey.from_private_bytes(unb64url(secret)))


KEY = key_of(RFC_SECRET)
OTHER = ProviderKey.generate()
KEYS = jwks([KEY.public_key])


def forged(header: dict[str, object], payload: bytes = b"{}") -> str:
    """A token with any header, properly signed by KEY."""
    signing_input = f"{b64url(json.dumps(header).encode())}.{b64url(payload)}"
    return f"{signing_input}.{b64url(KEY.sign(signing_input.encode()))}"


# --- keys ----------------------------------------------------------------------------------------


def test_public_key_thumbprint_and_signature_are_those_of_rfc_8037() -> None:
    assert KEY.public_key == RFC_PUBLIC
    assert KEY.key_id == thumbprint(RFC_PUBLIC) == RFC_THUMBPRINT
    assert b64url(KEY.sign(RFC_SIGNING_INPUT.encode())) == RFC_SIGNATURE
    assert verify_signature(RFC_PUBLIC, RFC_SIGNATURE, RFC_SIGNING_INPUT.encode())


def test_a_key_survives_its_pem_form() -> None:
    pem = OTHER.to_pem()
    assert pem.startswith(b"-----BEGIN PRIVATE KEY-----\n")
    assert ProviderKey.from_pem(pem).key_id == OTHER.key_id


def test_other_keys_and_other_files_are_refused() -> None:
    p256 = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for pem in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", p256):
        with pytest.raises(MalformedKey):
            ProviderKey.from_pem(pem)


def test_a_key_never_shows_itself() -> None:
    assert repr(KEY) == f"ProviderKey(key_id='{RFC_THUMBPRINT}')"


def test_provider_ids_are_random_base32() -> None:
    minted = {mint_provider_id() for _ in range(200)}
    assert len(minted) == 200
    assert all(re.fullmatch(r"prov_[a-z2-7]{26}", provider_id) for provider_id in minted)


@given(st.binary(max_size=40))
def test_base64url_has_one_spelling(data: bytes) -> None:
    text = b64url(data)
    assert unb64url(text) == data
    for wrong in (text + "=", text + "\n", " " + text, text.replace("-", "+"), text.replace("_", "/")):
        if wrong != text:
            with pytest.raises(ValueError, match="base64url"):
                unb64url(wrong)


@pytest.mark.parametrize("signature", ["", "AA", RFC_SIGNATURE[:-1], RFC_SIGNATURE + "=", "é" * 86])
def test_a_malformed_signature_or_key_is_just_not_valid(signature: str) -> None:
    assert not verify_signature(RFC_PUBLIC, signature, RFC_SIGNING_INPUT.encode())
    assert not verify_signature(signature, RFC_SIGNATURE, RFC_SIGNING_INPUT.encode())


# --- registration --------------------------------------------------------------------------------

REGISTRATION = {
    "gateway_id": "gw_1",
    "gateway_url": "wss://api.malibu.tech",
    "nonce": "n" * 43,
    "provider_id": "prov_" + "a" * 26,
}


def test_registration_is_signed_in_one_fixed_form() -> None:
    assert registration_bytes(**REGISTRATION, public_key=RFC_PUBLIC) == (
        b'{"domain":"malibu.register.v1","gateway_id":"gw_1","gateway_url":"wss://api.malibu.tech",'
        b'"nonce":"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",'
        b'"provider_id":"prov_aaaaaaaaaaaaaaaaaaaaaaaaaa",'
        b'"public_key":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}'
    )


def test_registration_holds_for_exactly_these_values() -> None:
    signature = sign_registration(KEY, **REGISTRATION)
    assert verify_registration(signature, **REGISTRATION, public_key=KEY.public_key)
    for name in REGISTRATION:
        other = {**REGISTRATION, name: REGISTRATION[name] + "x"}
        assert not verify_registration(signature, **other, public_key=KEY.public_key)
    assert not verify_registration(signature, **REGISTRATION, public_key=OTHER.public_key)
    assert not verify_registration("", **REGISTRATION, public_key="")


def test_consent_names_the_successor_and_the_identity() -> None:
    signature = sign_consent(KEY, provider_id="prov_a", public_key=OTHER.public_key)

    def holds(provider_id: str, previous: str, public_key: str) -> bool:
        return verify_consent(
            signature, provider_id=provider_id, previous_public_key=previous, public_key=public_key
        )

    assert holds("prov_a", KEY.public_key, OTHER.public_key)
    assert not holds("prov_b", KEY.public_key, OTHER.public_key)
    assert not holds("prov_a", OTHER.public_key, OTHER.public_key)
    assert not holds("prov_a", KEY.public_key, ProviderKey.generate().public_key)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("wss://api.malibu.tech/v1/provider", "wss://api.malibu.tech"),
        ("WSS://API.Malibu.tech:443/v1/provider?x#y", "wss://api.malibu.tech"),
        ("ws://127.0.0.1:8799/v1/provider", "ws://127.0.0.1:8799"),
        ("ws://user:secret@host:80/", "ws://host"),
        ("wss://host:80", "wss://host:80"),
        ("ws://[::1]:9000/x", "ws://[::1]:9000"),
        ("https://host/", "https://host"),
    ],
)
def test_origin_of_a_url(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize("url", ["", "api.malibu.tech", "ftp://host", "wss:///path", "ws://host:99999"])
def test_what_has_no_origin(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        origin_of(url)


# --- tokens --------------------------------------------------------------------------------------


def test_a_token_holds_its_payload_and_three_header_members() -> None:
    token = make_jws(KEY, TYP, b'{"a":1}')
    assert json.loads(unb64url(token.split(".")[0])) == {"alg": "Ed25519", "kid": RFC_THUMBPRINT, "typ": TYP}
    assert verify_jws(token, TYP, KEYS) == b'{"a":1}'


def test_another_library_reads_ours_and_we_read_its() -> None:
    private = OKPKey.import_key(dict[str, str | list[str]](KEY.jwk, d=RFC_SECRET))
    public = OKPKey.import_key(dict[str, str | list[str]](KEY.jwk))
    read = jws.deserialize_compact(make_jws(KEY, TYP, b"payload"), public, algorithms=["Ed25519"])
    assert (read.payload, read.headers()["typ"]) == (b"payload", TYP)
    header = {"alg": "Ed25519", "typ": TYP, "kid": KEY.key_id}
    token = jws.serialize_compact(header, b"payload", private, algorithms=["Ed25519"])
    assert verify_jws(token, TYP, KEYS) == b"payload"


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none", "typ": TYP, "kid": RFC_THUMBPRINT},
        {"alg": "EdDSA", "typ": TYP, "kid": RFC_THUMBPRINT},
        {"alg": "HS256", "typ": TYP, "kid": RFC_THUMBPRINT},
        {"alg": "ed25519", "typ": TYP, "kid": RFC_THUMBPRINT},
        {"typ": TYP, "kid": RFC_THUMBPRINT},
        {"alg": "Ed25519", "typ": "other+jwt", "kid": RFC_THUMBPRINT},
        {"alg": "Ed25519", "kid": RFC_THUMBPRINT},
        {"alg": "Ed25519", "typ": TYP},
        {"alg": "Ed25519", "typ": TYP, "kid": 5},
        {"alg": "Ed25519", "typ": TYP, "kid": RFC_THUMBPRINT, "crit": ["exp"], "exp": 1},
        {"alg": "Ed25519", "typ": TYP, "kid": RFC_THUMBPRINT, "b64": False},
    ],
    ids=str,
)
def test_a_header_can_not_choose_how_it_is_checked(header: dict[str, object]) -> None:
    with pytest.raises(MalformedToken):
        verify_jws(forged(header), TYP, KEYS)


@pytest.mark.parametrize(
    "token",
    ["", "a", "a.b", "..", "a.b.c.d", "é.é.é", "W10.e30.AA", "bnVsbA.e30.AA", "!!.e30.AA", "e30=.e30.AA"],
)
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(MalformedToken):
        verify_jws(token, TYP, KEYS)


def test_deep_nesting_in_a_header_is_no_crash() -> None:
    with pytest.raises(MalformedToken):
        verify_jws(f"{b64url(b'[' * 200_000)}.e30.AA", TYP, KEYS)


def test_a_key_inside_the_token_is_not_believed() -> None:
    header: dict[str, object] = {"alg": "Ed25519", "typ": TYP, "kid": KEY.key_id, "jwk": KEY.jwk}
    with pytest.raises(UnknownKey) as caught:
        verify_jws(forged(header), TYP, jwks([OTHER.public_key]))
    assert caught.value.key_id == KEY.key_id


def test_a_kid_that_another_key_claims_is_not_believed() -> None:
    impostor = {**OTHER.jwk, "kid": KEY.key_id}
    with pytest.raises(UnknownKey):
        verify_jws(make_jws(KEY, TYP, b"{}"), TYP, {"keys": [impostor]})


@pytest.mark.parametrize(
    "keys", [{}, {"keys": None}, {"keys": [None, {"kty": "RSA"}, {"kty": "OKP", "crv": "Ed25519"}]}]
)
def test_a_key_set_of_anything_is_no_crash(keys: dict[str, object]) -> None:
    with pytest.raises(UnknownKey):
        verify_jws(make_jws(KEY, TYP, b"{}"), TYP, keys)


def test_every_changed_character_of_a_token_is_noticed() -> None:
    token = make_jws(KEY, TYP, b'{"a":1}')
    for at, character in enumerate(token):
        changed = token[:at] + ("A" if character != "A" else "B") + token[at + 1 :]
        with pytest.raises((MalformedToken, UnknownKey, BadSignature)):
            verify_jws(changed, TYP, KEYS)
