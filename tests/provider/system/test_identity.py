"""The identity on disk: made once, kept, rotated with consent, refused when others could read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway_protocol.consents import leading_to
from gateway_protocol.signing import verify_consent
from provider.errors import ProviderError
from provider.system.identity import load_identity, rotate_key


def test_made_once_and_private(tmp_path: Path) -> None:
    first, second = load_identity(tmp_path), load_identity(tmp_path)
    assert first.provider_id == second.provider_id
    assert first.provider_id.startswith("prov_")
    assert first.key.public_key == second.key.public_key
    assert first.consents == ()
    assert {file.name for file in tmp_path.iterdir()} == {"key.pem", "identity.json"}
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_rotation_keeps_the_provider_and_shows_consent(tmp_path: Path) -> None:
    old = load_identity(tmp_path)
    new = rotate_key(tmp_path)
    assert new.provider_id == old.provider_id
    assert new.key.public_key != old.key.public_key
    (consent,) = new.consents
    assert consent.public_key == old.key.public_key
    assert verify_consent(
        consent.signature,
        provider_id=new.provider_id,
        previous_public_key=old.key.public_key,
        public_key=new.key.public_key,
    )
    again = load_identity(tmp_path)
    assert (again.key.public_key, again.consents) == (new.key.public_key, new.consents)
    assert again.public_keys == (old.key.public_key, new.key.public_key)


def test_consent_to_another_key_is_not_shown(tmp_path: Path) -> None:
    load_identity(tmp_path)
    pem = (tmp_path / "key.pem").read_bytes()
    rotate_key(tmp_path)
    # As after a crash between the two files: the consent is new, the key is still the old one.
    (tmp_path / "key.pem").write_bytes(pem)
    assert load_identity(tmp_path).consents == ()


def test_rotations_one_after_another_show_every_consent(tmp_path: Path) -> None:
    keys = [load_identity(tmp_path).key.public_key]
    for _ in range(3):
        keys.append(rotate_key(tmp_path).key.public_key)
    held = load_identity(tmp_path)
    assert [consent.public_key for consent in held.consents] == keys[-2::-1]
    assert leading_to(held.key.public_key, held.provider_id, held.consents) == held.consents
    # As after a crash in a fourth: the older consents still lead to the key in force.
    pem = (tmp_path / "key.pem").read_bytes()
    rotate_key(tmp_path)
    (tmp_path / "key.pem").write_bytes(pem)
    assert load_identity(tmp_path).consents == held.consents


def test_an_identity_of_an_older_version_is_read(tmp_path: Path) -> None:
    load_identity(tmp_path)
    new = rotate_key(tmp_path)
    document = json.loads((tmp_path / "identity.json").read_text())
    del document["earlier"]
    (tmp_path / "identity.json").write_text(json.dumps(document))
    assert load_identity(tmp_path).consents == new.consents


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    load_identity(tmp_path)
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(ProviderError, match="chmod 600"):
        load_identity(tmp_path)


@pytest.mark.parametrize("damage", ["no key", "no identity", "half an identity", "no PEM"])
def test_damage_is_told_and_never_mended_by_a_new_identity(tmp_path: Path, damage: str) -> None:
    load_identity(tmp_path)
    match damage:
        case "no key":
            (tmp_path / "key.pem").unlink()
        case "no identity":
            (tmp_path / "identity.json").unlink()
        case "half an identity":
            (tmp_path / "identity.json").write_text(json.dumps({"provider_id": "prov_x"}))
        case _:
            (tmp_path / "key.pem").write_text("no PEM")
    with pytest.raises(ProviderError, match="damaged"):
        load_identity(tmp_path)
