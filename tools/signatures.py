"""DSSE envelopes signed with Ed25519: made and checked here alone, by securesystemslib."""

import copy
import hashlib
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from .domain.errors import Refused


def public_pem(private_key: Ed25519PrivateKey) -> str:
    """The public half, SubjectPublicKeyInfo PEM."""
    return private_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def key_id(pem: str) -> str:
    """SHA-256 (hex) of the public key's DER form."""
    return hashlib.sha256(_load(pem).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def sign(payload: bytes, payload_type: str, private_key: Ed25519PrivateKey) -> dict[str, Any]:
    """Sign `payload` into a DSSE envelope (https://github.com/secure-systems-lab/dsse), as plain JSON data."""
    envelope = Envelope(payload, payload_type, {})
    envelope.sign(CryptoSigner(private_key, _sslib_key(public_pem(private_key))))
    data: dict[str, Any] = envelope.to_dict()
    return data


def verify(envelope: dict[str, Any], payload_type: str, pem: str) -> bytes:
    """The payload, if this key signed it under this type.

    Raises:
        Refused: malformed envelope, another type, or no valid signature by this key.
    """
    try:
        parsed = Envelope.from_dict(copy.deepcopy(envelope))  # it decodes the signatures in place
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused("the signature envelope is malformed", allowed="a DSSE envelope") from error
    if parsed.payload_type != payload_type:
        raise Refused(f"the envelope holds {parsed.payload_type!r}", allowed=payload_type)
    try:
        parsed.verify([_sslib_key(pem)], 1)
    except (VerificationError, ValueError) as error:
        raise Refused("the signature does not fit the payload and the enrolled key") from error
    payload: bytes = parsed.payload
    return payload


def _load(pem: str) -> Ed25519PublicKey:
    key = load_pem_public_key(pem.encode())
    if not isinstance(key, Ed25519PublicKey):
        raise Refused(f"a key of type {type(key).__name__}", allowed="Ed25519")
    return key


def _sslib_key(pem: str) -> SSlibKey:
    return SSlibKey.from_crypto(_load(pem), keyid=key_id(pem))
